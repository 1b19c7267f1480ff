"""Sentences of several clauses for `bench.joins`; "/" stands where a long clause is cut between words."""

from typing import Final

from server.text.tokens import Language

SENTENCES: Final[dict[Language, tuple[str, ...]]] = {
    "zh": tuple(
        """
昨天傍晚我和两个同事/沿着江边的小路散步，看见几只白鹭/停在浅滩上，谁也不肯先飞走。
因为今年的雨水特别多，山脚下的稻田/比往年晚了半个月才抽穗，农户们都在等/一个连续的晴天。
这家面馆开在巷子深处，老板每天凌晨四点/就起来熬汤，第一锅总是留给/附近扫街的工人。
飞机降落以后，机长在广播里提醒大家/不要急着站起来，行李架上的箱子/可能会滑落。
博物馆三楼正在展出/一批从沉船里打捞的瓷器，讲解员说其中最小的那只碗，上面还留着/工匠的指纹。
她把阳台上的旧花盆/全部换成了木箱，种了薄荷和番茄，到了夏天/邻居家的孩子常来讨几颗。
会议室的投影仪又坏了，我们只好把图表/打印出来贴在墙上，反而讨论得/比平时更加热烈。
为了赶上最后一班渡船，他们在雨里/跑了将近两公里，等到坐下来的时候，连背包里的书/也湿透了。
这座图书馆的阅览室/常年开着一扇小窗，管理员相信新鲜的空气/可以让读者坐得更久，也读得更慢。
如果你愿意早起一个小时，就能看到渔民/在码头上拍卖刚打上来的鱼，整个过程/只有短短十几分钟。
新修的自行车道/绕过了那片老槐树林，设计师宁愿多花一些预算，也不想让任何一棵树/因此被砍掉。
小镇的钟楼每到整点/就会响起一段旧曲子，外地来的游客以为是录音，其实里面住着/一位老乐师。
实验进行到第三周，温度曲线忽然/出现了一个小小的台阶，大家检查了很久才发现，原来是清洁工/每晚都会关掉空调。
爷爷修了一辈子的收音机，客厅里到处堆着/拆开的零件和图纸，他说声音这种东西，只要线路还通，就永远不会/真正消失。
列车穿过隧道的时候，车厢里突然/安静了下来，只有一个小女孩/还在轻轻地数着窗外的灯。
公司决定从下个月起/实行弹性工作时间，员工可以自己选择/上午几点到岗，但是每周的例会/仍然不能缺席。
那年冬天河面结了厚厚的冰，村里的年轻人/在上面画了一个巨大的棋盘，用不同颜色的水桶/当作棋子。
医生看完片子以后/沉默了一会儿，然后笑着对他说，你的骨头恢复得/比我想象的还要好。
厨房里飘来烤红薯的香味，奶奶一边翻动炉火，一边讲起她小时候/走十里山路去上学的故事。
软件更新以后，地图上多了一个/显示树荫的图层，夏天骑车的人/可以挑一条凉快的路。
""".split()
    ),
    "en": (
        "Yesterday my neighbour carried two ladders /across the frozen yard, and nobody asked him /why he needed "
        "both of them.",
        "Because the harbour was closed for repairs, the ferry left from an old pier /behind the fish market, "
        "which most passengers /could not find in time.",
        "The baker opens at five in the morning, when the street is still dark, and she gives the first loaf /to "
        "whoever has been waiting longest.",
        "If you walk along the river in April, you will see children /building small dams from stones, while "
        "their parents pretend /not to notice the mud.",
        "The old clock in the station hall /has been wrong for eleven years, but travellers still set their "
        "watches by it, out of habit /more than trust.",
        "She replaced the broken window with a sheet of plywood, painted a garden on it, and told every visitor "
        "/that the view was much better now.",
        "Our teacher believed that mathematics /should be learned outdoors, so we measured the shadows of trees "
        "/until the rain drove us back inside.",
        "When the power failed during the concert, the pianist kept playing in the dark, and the audience "
        "listened /with a silence I have never heard again.",
        "The report arrived on Friday evening /without any tables, and the two analysts who had written it /were "
        "already on a plane to Lisbon.",
        "Although the recipe asks for twelve eggs, my grandmother always used nine, because she said that the "
        "last three /were only there for pride.",
        "A small museum near the border /keeps a collection of lost gloves, each one labelled with the place "
        "/where somebody found it.",
        "The engineers had planned for storms, for ice and for heat, yet nobody had expected a family of owls "
        "/inside the main transmitter.",
        "He repaired radios for most of his life, and after he retired /he could still tell the maker of a set "
        "/by the sound of its hum.",
        "Before the train enters the tunnel, the conductor walks through every carriage /and switches off the "
        "reading lamps, so that the passengers /can see the stars.",
        "The library lends umbrellas as well as books, and it turns out that the umbrellas /come back far more "
        "reliably /than the novels do.",
        "During the long winter of that year, the lake froze so deep /that people drove across it, and a market "
        "with forty stalls /stood in the middle until March.",
        "My sister collects maps of places /that were never built, such as airports and canals, and she can "
        "describe each of them /as if she had been there.",
        "After the second interview, the manager admitted that the position /had been filled a week ago, although "
        "he still wanted to hear /what I thought of the building.",
        "The gardener cut the hedge in the shape of a whale, which delighted the tourists, but the mayor "
        "complained /that it blocked the view of the bank.",
        "Nobody remembers who planted the orchard, yet every autumn /the whole village gathers under its trees, "
        "and the apples are shared /without a single argument.",
    ),
}
