"""What the suite has the server say: text as a user writes it, and how it should be said.

Readings are written out by hand; several where more than one is good. They are the recogniser's reference, so they also
catch a wrong reading of a number, as far as it can be heard.
"""

from dataclasses import dataclass, field

from tests.quality.scoring import Kind


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text and its accepted readings; none given: it is said as written. `ci`: among the eight that CI hears."""

    kind: Kind
    text: str
    readings: tuple[str, ...] = field(default=())
    ci: bool = False

    @property
    def said(self) -> tuple[str, ...]:
        """The references."""
        return self.readings or (self.text,)


def _zh(text: str, *readings: str, ci: bool = False) -> Sentence:
    return Sentence("zh", text, readings, ci)


def _en(text: str, *readings: str, ci: bool = False) -> Sentence:
    return Sentence("en", text, readings, ci)


def _mixed(text: str, *readings: str, ci: bool = False) -> Sentence:
    return Sentence("mixed", text, readings, ci)


CHINESE = (
    _zh("早上好，欢迎大家来参加今天的活动。", ci=True),
    _zh("昨天晚上下了一场大雨，路上到处都是积水。"),
    _zh("这本书我已经看完了，你要是喜欢可以拿去看。"),
    _zh("为什么秋天的树叶会变黄？因为叶绿素慢慢减少了。"),
    _zh("请把窗户关上，外面的风太大了！"),
    _zh("孩子们在操场上跑步，老师站在旁边给他们加油。"),
    _zh("火车站离这里不远，走路大约需要二十分钟。"),
    _zh("语音合成技术可以把文字变成自然的声音，让机器开口说话。"),
    _zh("妈妈做的红烧鱼很好吃，我每次回家都要吃两碗饭。"),
    _zh("长城是世界上最长的城墙，每年吸引很多游客。"),
    _zh("2024年10月1日，我们全家去了北京。", "二零二四年十月一日我们全家去了北京", ci=True),
    _zh("会议改到下午3点45分开始。", "会议改到下午三点四十五分开始"),
    _zh("火车8:20出发，大概要坐6个小时。", "火车八点二十出发大概要坐六个小时", "火车八点二十分出发大概要坐六个小时"),
    _zh(
        "今年的产量提高了8.5%，比去年多了1200吨。",
        "今年的产量提高了百分之八点五比去年多了一千二百吨",
        "今年的产量提高了百分之八点五比去年多了一千两百吨",
        ci=True,
    ),
    _zh(
        "这件衣服原价￥399，打折以后只要259元。",
        "这件衣服原价三百九十九元打折以后只要二百五十九元",
        "这件衣服原价三百九十九元打折以后只要两百五十九元",
    ),
    _zh("公司去年的收入是4.2亿元，利润增长了15%。", "公司去年的收入是四点二亿元利润增长了百分之十五"),
    _zh("有问题请打电话13912345678。", "有问题请打电话一三九一二三四五六七八", "有问题请打电话幺三九幺二三四五六七八"),
    _zh("包裹重2.5kg，运费是18元。", "包裹重二点五千克运费是十八元", "包裹重二点五公斤运费是十八元"),
    _zh(
        "明天最高气温31℃，最低气温24℃。",
        "明天最高气温三十一摄氏度最低气温二十四摄氏度",
        "明天最高气温三十一度最低气温二十四度",
    ),
    _zh(
        "我家住在人民路105号，二楼左边第一间。",
        "我家住在人民路一百零五号二楼左边第一间",
        "我家住在人民路幺零五号二楼左边第一间",
    ),
    _zh("全班45个学生，有2/3参加了比赛。", "全班四十五个学生有三分之二参加了比赛"),
    _zh("这座桥全长1,350米，总共花了三年时间。", "这座桥全长一千三百五十米总共花了三年时间"),
    _zh("银行的营业时间是上午9点到下午5点半。", "银行的营业时间是上午九点到下午五点半"),
    _zh(
        "他一口气跑了12km，用了1个小时零5分钟。",
        "他一口气跑了十二千米用了一个小时零五分钟",
        "他一口气跑了十二公里用了一个小时零五分钟",
    ),
)

ENGLISH = (
    _en("Good morning, everyone, and welcome to the show.", ci=True),
    _en("It rained all night, so the streets were still wet in the morning."),
    _en("Could you close the window, please? It is getting cold in here."),
    _en("The children were playing in the garden when their father came home."),
    _en("I have read this book twice, and I still don't know how it ends."),
    _en("Speech synthesis turns written words into a natural voice."),
    _en("What a beautiful view! You can see the whole valley from up here."),
    _en("She opened the door slowly, looked around, and smiled."),
    _en("If you turn left at the next corner, you will find the station."),
    _en("Most people prefer coffee in the morning and tea in the afternoon."),
    _en("The museum opened on June 12th, 1998.", "the museum opened on june twelfth nineteen ninety eight", ci=True),
    _en("The next train leaves at 7:45 in the evening.", "the next train leaves at seven forty five in the evening"),
    _en(
        "He paid $24.50 for the ticket and $3 for a drink.",
        "he paid twenty four dollars and fifty cents for the ticket and three dollars for a drink",
        "he paid twenty four dollars fifty cents for the ticket and three dollars for a drink",
        ci=True,
    ),
    _en(
        "Sales rose by 7.5% last year, to $1.2 million.",
        "sales rose by seven point five percent last year to one point two million dollars",
    ),
    _en(
        "The package weighs 2.5 kg and arrives on May 3rd.",
        "the package weighs two point five kilograms and arrives on may third",
    ),
    _en(
        "More than 1,500 people came to the concert.",
        "more than one thousand five hundred people came to the concert",
        "more than fifteen hundred people came to the concert",
    ),
    _en(
        "You can reach us at 555-0199 on weekdays.",
        "you can reach us at five five five zero one nine nine on weekdays",
        "you can reach us at five five five oh one nine nine on weekdays",
    ),
    _en(
        "Dr. Brown has lived at 221 Baker Street since 2005.",
        *(
            f"doctor brown has lived at {number} baker street since {year}"
            for number in ("two hundred twenty one", "two hundred and twenty one", "two twenty one")
            for year in ("two thousand five", "two thousand and five", "twenty oh five")
        ),
    ),
    _en(
        "About 30% of the students walk to school every day.",
        "about thirty percent of the students walk to school every day",
    ),
    _en(
        "The temperature dropped to 15°C during the night.",
        "the temperature dropped to fifteen degrees celsius during the night",
    ),
    _en(
        "They drove 250 miles in just under 4 hours.",
        "they drove two hundred fifty miles in just under four hours",
        "they drove two hundred and fifty miles in just under four hours",
    ),
    _en(
        "The meeting on 03/15/2024 starts at 9 a.m.",
        "the meeting on march fifteenth twenty twenty four starts at nine am",
        "the meeting on march fifteenth two thousand twenty four starts at nine am",
        "the meeting on march the fifteenth twenty twenty four starts at nine am",
    ),
    _en("Chapter 3 begins on page 47.", "chapter three begins on page forty seven"),
    _en(
        "Water boils at 212 degrees, and freezes at 32.",
        "water boils at two hundred twelve degrees and freezes at thirty two",
        "water boils at two hundred and twelve degrees and freezes at thirty two",
        "water boils at two twelve degrees and freezes at thirty two",
    ),
)

MIXED = (
    _mixed("我昨天买了一台新的computer，花了5000元。", "我昨天买了一台新的computer花了五千元"),
    _mixed("请打开Windows的设置，然后点击network。", ci=True),
    _mixed("这个project的deadline是下周五。", ci=True),
    _mixed("他在Google工作了3年，现在回到了上海。", "他在google工作了三年现在回到了上海"),
    _mixed("我们用Python写了一个server，效果很好。"),
    _mixed("今天晚上我们去看一场football比赛，好不好？"),
    _mixed("你可以发email给我，或者直接打电话。"),
    _mixed("Hello，欢迎来到中国。"),
    _mixed("请说thank you very much，然后再见。"),
    _mixed("这家restaurant的pizza只要$12。", "这家restaurant的pizza只要十二美元"),
)

ALL = (*CHINESE, *ENGLISH, *MIXED)

ISOLATED_CHINESE = (
    "苹果 电脑 学校 天空 老师 朋友 北京 音乐 今天 火车 医院 办法 问题 国家 动物 面包 衣服 开始 晚上 他们".split()
)
ISOLATED_ENGLISH = (
    "apple bottle garden window table music doctor paper number yellow kitchen animal river monkey summer later "
    "question zebra village orange"
).split()

RUNNING_ENGLISH = (
    "The old man walked down to the river every morning. He carried a small wooden chair and a long fishing rod. "
    "Nobody ever saw him catch a fish, but he did not seem to mind. When the sun went down, he folded the chair and "
    "walked home again."
)
RUNNING_CHINESE = (
    "小河边住着一位老人，他每天早上都会去散步。路边的花开得很漂亮，空气也非常新鲜。他常常坐在大树下面看书，"
    "有时候和邻居聊天。太阳下山的时候，他就慢慢地走回家。"
)

# Many words that begin with s, sh and the like, whose beginning is plain to see in the sound.
HISSING_ENGLISH = (
    "She said that seven small ships sailed slowly south. Some of the sailors sat on the deck and sang, since the sun "
    "was still shining. So they stayed outside until supper was served."
)
HISSING_CHINESE = (
    "上个星期三，叔叔送给小梅一些水果。孩子们在山上唱歌，声音十分清脆。"
    "谁知道这首诗是什么时候写的？先生说，他十四岁就开始写书。"
)
