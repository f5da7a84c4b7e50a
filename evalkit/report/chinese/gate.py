"""What the judge says in verdict.json: reasons, and what more evidence is needed."""

GATE: dict[str, str] = {
    "{hit} of {all} blocking rules failed: {names}": "{all} 条阻断规则中 {hit} 条不通过：{names}",
    "{hit} of {all} blocking rules could not be decided: {names}": "{all} 条阻断规则中 {hit} 条无法判定：{names}",
    "all {all} blocking rules passed": "全部 {all} 条阻断规则均通过",
    "every rule is `severity: warn`, so nothing was decided": "所有规则均为 `severity: warn`，因此什么也没有判定",
    "no blocking rule was applied, so nothing was decided": "没有适用任何阻断规则，因此什么也没有判定",
    "a blocking rule has no outcome": "有一条阻断规则没有结果",
    "Looking again and again isn't free: every further look at new samples raises the chance of a wrong verdict. This was look {look} of at most {n}; add the named number of samples at once.": (
        "反复查看并非没有代价：每多看一次新样本，误判的概率就上升。这是第 {look} 次查看，至多 {n} 次；请把所需的样本一次加足。"
    ),
    "Looking again and again isn't free: every further look at new samples raises the chance of a wrong verdict. This was look {look} of at most {n}; a further one at this candidate takes a policy that allows it, and samples that nobody has looked at.": (
        "反复查看并非没有代价：每多看一次新样本，误判的概率就上升。这是第 {look} 次查看，至多 {n} 次；若要再次查看此候选，需要允许再看一次的策略，以及无人看过的样本。"
    ),
    "more samples decide nothing under this policy; let its owner write one that allows another look, and judge samples by it that nobody has looked at; another candidate begins at look 1": (
        "在此策略下，更多样本也判定不了什么；请策略所有者写一份允许再看一次的策略，并按它评判无人看过的样本；另一个候选从第 1 次查看开始"
    ),
    "{more:t}; this was the last look that the policy allows, so let its owner first write one that allows another": (
        "{more:t}；这是该策略允许的最后一次查看，请先由策略所有者写一份允许再看一次的策略"
    ),
    "this is look {look} at this candidate under this policy, each at other samples; max_looks allows {n}": (
        "这是在此策略下第 {look} 次查看此候选，每次样本不同；max_looks 允许 {n} 次"
    ),
    "supply what the reason names, then measure and judge again": "补齐原因中所列的内容，然后重新测量和评判",
    "number of blocking rules times (1 - confidence), at most 1; it holds however the rules depend on each other and is reached only if every true value lies exactly at its threshold": (
        "阻断规则数乘以（1 − 置信度），至多为 1；无论规则之间如何相关都成立，只有当每个真值恰好等于阈值时才会达到"
    ),
    "first release: there is no baseline to compare with, so this rule is not applied": "首次发布：没有可比较的基线，因此不适用此规则",
    "upper bound {bound} is {relation:t} {threshold}": "上界 {bound} {relation:t} {threshold}",
    "lower bound {bound} is {relation:t} {threshold}": "下界 {bound} {relation:t} {threshold}",
    "upper bound {bound} is exactly at the threshold": "上界 {bound} 恰好等于阈值",
    "lower bound {bound} is exactly at the threshold": "下界 {bound} 恰好等于阈值",
    "{bad:t}, {good:t} is not: too few samples to decide": "{bad:t}，而{good:t} 则不然：样本太少，无法判定",
    "upper bound {bound}": "上界 {bound}",
    "lower bound {bound}": "下界 {bound}",
    "above": "高于",
    "below": "低于",
    "at or above": "不低于",
    "at or below": "不高于",
    "one end of the interval could not be computed": "区间的一端无法计算",
    "n {n} is below min_n {least}": "n {n} 低于 min_n {least}",
    "add {nouns:t}; the value lies so near to the threshold that no sample size can be named": "增加{nouns:t}；数值离阈值太近，无法给出所需样本量",
    "add {nouns:t}: {times} times as many as now (n {now} → {then})": "增加{nouns:t}：现有的 {times} 倍（n {now} → {then}）",
    "dialogues": "对话",
    "texts and decisions and dialogues": "文本、决策和对话",
    "texts and decisions": "文本和决策",
    "no value: {reason:t}": "没有数值：{reason:t}",
    "no change: {reason:t}": "没有变化值：{reason:t}",
    "no confidence bounds: {reason:t}": "没有置信界限：{reason:t}",
    "they could not be computed": "无法计算",
    "{metric} is predicted by a model that learnt from {data:t}; a blocking rule needs a model card of rated samples (`sandbox fit satisfaction RATED.csv --rated`), or make it `severity: warn`": (
        "{metric} 由学自{data:t}的模型预测；阻断规则需要真人评分样本的模型卡（`sandbox fit satisfaction RATED.csv --rated`），或改为 `severity: warn`"
    ),
    "the candidate's run is partial; finish it with `evalkit resume`": "候选的运行不完整；请用 `evalkit resume` 完成",
    "the baseline's run is partial; finish it with `evalkit resume`": "基线的运行不完整；请用 `evalkit resume` 完成",
    "the value isn't a finite number ({value})": "数值不是有限数（{value}）",
    "nothing was measured (n is 0)": "什么也没有测量（n 为 0）",
    "coverage {shown} is below {least}: planned samples gave no result": "覆盖率 {shown} 低于 {least}：有计划的样本没有给出结果",
    "coverage unknown is below {least}: planned samples gave no result": "覆盖率未知，要求 {least}：有计划的样本没有给出结果",
    "the bounds are {sides}-sided at {has}, the policy asks for one-sided ones at {wants}; judge the run again": (
        "界限为 {sides} 侧、置信度 {has}，策略要求单侧、置信度 {wants}；请重新评判"
    ),
    "the bounds are out of order ({low}, {high})": "界限顺序颠倒（{low}，{high}）",
    "the interval is zero wide: the samples don't vary, so their spread says nothing": "区间宽度为零：样本没有变化，其离散程度不说明任何问题",
    "no baseline was measured; give `baseline`, or `first_release: true` if there is none yet": (
        "没有测量基线；请给出 `baseline`，若尚无基线则设 `first_release: true`"
    ),
    "the comparison is of another model than the results": "对比所用的模型与结果的模型不同",
    "candidate and baseline are the same model (equal model_digest)": "候选与基线是同一个模型（model_digest 相同）",
    "measured in different ways, not comparable: {one} and {other}": "测量方式不同，不可比较：{one} 与 {other}",
    "measured in different ways: {one} and {other}": "测量方式不同：{one} 与 {other}",
    "{condition} limits an improvement of {metric}, not a regression": "{condition} 限制的是 {metric} 的改进，而不是退步",
    "the share within {ms} ms was not measured; {reason:t}": "没有测量 {ms} ms 以内的比例；{reason:t}",
    "the share within {ms} ms was not measured; ": "没有测量 {ms} ms 以内的比例",
    "no share within {ms} ms": "没有 {ms} ms 以内的比例",
    "{metric} stands {n} times in the results; once is right": "{metric} 在结果中出现 {n} 次；应为一次",
    "{metric} stands {n} times in the comparison; once is right": "{metric} 在对比中出现 {n} 次；应为一次",
    "{metric} isn't in the results": "结果中没有 {metric}",
    "{metric} isn't in the comparison": "对比中没有 {metric}",
    "{metric} is in the results only for {have}": "结果中 {metric} 只有：{have}",
    "{metric} is in the comparison only for {have}": "对比中 {metric} 只有：{have}",
    "{n} of {all} {noun:t} of the {side:t} ended in an error; {name} allows a share of {allowed}": (
        "{side:t}的 {all} 个{noun:t}中 {n} 个以错误告终；{name} 允许的比例为 {allowed}"
    ),
    "{n} of {all} {noun:t} of the {side:t} were truncated; {name} allows a share of {allowed}": (
        "{side:t}的 {all} 个{noun:t}中 {n} 个被截断；{name} 允许的比例为 {allowed}"
    ),
    "the candidate has no value: {reason:t}": "候选没有数值：{reason:t}",
    "the baseline has no value: {reason:t}": "基线没有数值：{reason:t}",
    "not measured on the paired samples": "在配对样本上没有测量",
}
