"""Where a clause without punctuation may be cut, and how well: scores for word boundaries in Chinese and English.

No dictionary is loaded: in Chinese a boundary is good after a particle (的, 了...) or before a word that opens a phrase
(和, 在, 因为...); a table of common words keeps the most frequent compounds whole.
"""

from enum import IntEnum

from server.text.characters import CLOSERS, splits_character
from server.text.units import Kind, Unit

_ZH_AFTER = frozenset("的了着过吗呢吧们")
_ZH_BEFORE = frozenset("和与及在是把被对从向而但就也都还又并或让使给跟以将会能要可我你他她它这那每")
_ZH_BEFORE_WORDS = frozenset(
    "因为 所以 如果 虽然 但是 然后 而且 并且 或者 可以 已经 正在 没有 应该 需要 通过 为了 由于 关于 根据"
    " 以及 我们 你们 他们 这个 那个 这些 那些 什么 怎么 非常 比较 一个 一种 一些 不是 不能 不会 不要 不同".split()
)
_ZH_WHOLE = frozenset(
    "目的 的确 了解 着急 着力 着手 过去 过程 过来 过年 不过 经过 通过 超过 难过 现在 正在 存在 实在 所在"
    " 内在 外在 潜在 好在 但是 可是 还是 于是 就是 不是 只是 总是 要是 或是 也是 都是 正是 凡是 更是 和平"
    " 和谐 温和 缓和 饱和 总和 与其 参与 及时 以及 涉及 在于 是否 是非 把握 被子 对于 对方 对象 对话 面对"
    " 反对 相对 绝对 针对 从事 从来 自从 服从 向来 方向 一向 倾向 而且 而是 因而 然而 从而 就业 成就 也许"
    " 首都 成都 都市 还有 又是 并且 合并 或者 或许 让步 使用 使得 大使 即使 给予 跟踪 以后 以前 以为 以来"
    " 所以 可以 难以 予以 足以 将来 将军 即将 必将 会议 社会 机会 大会 协会 不会 晚会 能力 能够 能源 功能"
    " 可能 只能 智能 性能 要求 要点 主要 重要 需要 不要 只要 必要 可爱 可见 许可 认可 自我 你好 他人 其他"
    " 吉他 这样 这里 这些 这个 那样 那里 那些 那个 每天 每个 每年 因此 因为 我们 你们 他们 她们 它们 人们"
    " 咱们 目前 什么 怎么 没有 已经 应该 时候 时间 知道 觉得 认为 开始 问题 工作 生活 发展 经济 技术 中国"
    " 世界 国家 学生 老师 朋友 公司 今天 明天 昨天 天气 人工 系统 模型 数据 信息 文化 历史 语音 合成 大家"
    " 东西 地方 事情 一起 喜欢".split()
)
_ZH_BEFORE_NUMBER = frozenset("第年月日号点零〇一二三四五六七八九十百千万亿两半几数")
_ZH_NUMERAL = frozenset("零〇一二三四五六七八九十百千万亿两半几")
# Hanzi that end or open a longer word more often than they stand for themselves.
_ZH_SUFFIX = frozenset("室者性化员长式率度子儿头边里机器品物体部局院站店厂区市县省量法论权界型级")
_ZH_PREFIX = frozenset("第老非无超反各不很最更太越")
_EN_BEFORE = frozenset(
    "and but or nor so yet how why because although though while when where which who whom whose that if"
    " unless until since as than after before with without for from to into onto over under between among"
    " through about against during of in on at by".split()
)
_EN_NEVER_AFTER = frozenset(
    "a an the my your his her its our their this these those no very mr mrs ms dr prof st".split()
)


class Break(IntEnum):
    """How good a place is to end a segment."""

    NONE = 0
    POOR = 1
    FAIR = 2
    GOOD = 3
    WEAK_MARK = 4
    CLAUSE_MARK = 5
    STRONG_MARK = 6  # between main clauses; only where whole sentences are cut


_PRONOUNS = frozenset("我们 你们 他们 她们 它们 人们 咱们".split())
_PREFIXES = frozenset("$¥￥€£#@")  # belong to what follows
_OPENERS = frozenset("（([【《「『“‘〈{｛［")


def rate_break(text: str, before: Unit, after: Unit) -> Break:
    """How good a cut in front of the unit `after` would be; `before` is the last unit that is no space."""
    at = after.start
    if splits_character(text[at - 1], text[at]):
        return Break.NONE
    if before.kind is Kind.FULL_STOP:
        return Break.NONE  # of an abbreviation that goes on: "Dr. Smith"
    if before.kind is Kind.PIECE:
        return Break.POOR
    spaced = before.end < at
    if text[at] == "[" and text[at - 1] == "]":
        return Break.NONE  # sounds of one word: "[h][ǎo]"
    if after.kind is Kind.SYMBOL:
        return Break.FAIR if text[at] in _OPENERS or (spaced and text[at] in _PREFIXES) else Break.NONE
    if before.kind is Kind.SYMBOL and not spaced:
        return Break.FAIR if text[at - 1] in CLOSERS and after.kind is Kind.HANZI else Break.NONE
    if before.kind is Kind.HANZI and after.kind is Kind.HANZI:
        return Break.FAIR if spaced else _between_hanzi(text, at)
    if Kind.NUMBER in (before.kind, after.kind) and not spaced:
        return _beside_number(text[at - 1], before)
    if Kind.HANZI in (before.kind, after.kind):
        return Break.FAIR
    if not spaced:
        return Break.NONE
    return _between_words(text, before, after)


def _between_hanzi(text: str, at: int) -> Break:
    before, after = text[at - 1], text[at]
    if before + after in _ZH_WHOLE or (before in _ZH_NUMERAL and after in _ZH_NUMERAL):
        return Break.NONE
    next_pair, previous_pair = text[at : at + 2], text[max(0, at - 2) : at]
    if next_pair in _ZH_BEFORE_WORDS:
        return Break.GOOD
    if before in _ZH_AFTER and (previous_pair in _PRONOUNS or previous_pair not in _ZH_WHOLE):
        return Break.GOOD
    if after in _ZH_SUFFIX or before in _ZH_PREFIX:
        return Break.NONE
    if previous_pair in _ZH_WHOLE or next_pair in _ZH_WHOLE or after in _ZH_BEFORE:
        return Break.FAIR
    return Break.POOR


def _beside_number(char: str, before: Unit) -> Break:
    """Between a number and a Hanzi: never before its unit, nor after 第, 年 and the like."""
    return Break.NONE if before.kind is Kind.NUMBER or char in _ZH_BEFORE_NUMBER else Break.POOR


def _between_words(text: str, before: Unit, after: Unit) -> Break:
    previous, following = text[before.start : before.end].lower(), text[after.start : after.end].lower()
    if before.kind is Kind.NUMBER or after.kind is Kind.NUMBER:
        return Break.GOOD if following in _EN_BEFORE else Break.POOR  # "3 kg", "9:30 am", "March 14th"
    if previous in _EN_NEVER_AFTER or previous in _EN_BEFORE:
        return Break.POOR
    return Break.GOOD if following in _EN_BEFORE else Break.FAIR
