"""Sentences that the report itself says."""

SENTENCES: dict[str, str] = {
    # Rules.
    "A rule passes when the one-sided {confidence} bound on the bad side clears the threshold (dashed), fails when the whole interval lies beyond it, and is inconclusive otherwise.": (
        "坏侧的单侧 {confidence} 界限越过阈值（虚线）的好的一边时，规则通过；整个区间都在阈值坏的一边时，规则不通过；其余情况无法判定。"
    ),
    "needs n {n}": "需要 n = {n}",
    "to be decided, if the observed value is true": "才能判定（假设观测值即真值）",
    "A FAIL although all is well: chance at most {chance} ({assumption:t}).": "其实一切正常却判为不通过的概率：至多 {chance}（{assumption:t}）。",
    "at most {limit}": "至多 {limit}",
    "at least {limit}": "至少 {limit}",
    "at least {share} within {ms} ms": "至少 {share} 在 {ms} ms 以内",
    "relative increase at most {limit}": "相对增幅至多 {limit}",
    "relative decrease at most {limit}": "相对降幅至多 {limit}",
    "increase at most {limit}": "增幅至多 {limit}",
    "decrease at most {limit}": "降幅至多 {limit}",
    "value {value}, bounds {bounds}, n {n}, coverage {coverage}": "数值 {value}，界限 {bounds}，n {n}，覆盖率 {coverage}",
    # Labels of charts.
    "threshold {value}": "阈值 {value}",
    "budget {ms} ms": "预算 {ms} ms",
    "no change": "无变化",
    "mean probability {said}": "平均概率 {said}",
    "mean probability {said}: observed {seen}, {low} to {high}": "平均概率 {said}：实际观测 {seen}，{low} 至 {high}",
    "{name}: value {value}, bounds {bounds}, threshold {threshold}": "{name}：数值 {value}，界限 {bounds}，阈值 {threshold}",
    "{name}: candidate {value}, {interval}": "{name}：候选 {value}，{interval}",
    "{name}: candidate {value}, {interval}; baseline {other}": "{name}：候选 {value}，{interval}；基线 {other}",
    "{name}: {value}, {interval}, better": "{name}：{value}，{interval}，变好",
    "{name}: {value}, {interval}, worse": "{name}：{value}，{interval}，变差",
    "{name}: {value}, {interval}, no clear difference": "{name}：{value}，{interval}，无明显差异",
    "{name}: {value}, {interval}, no interval": "{name}：{value}，无区间",
    # Leads and legends.
    "Changes are paired: both models on the same samples.": "变化为配对比较：两个模型使用相同样本。",
    "candidate with its {confidence} interval": "候选及其 {confidence} 区间",
    "Where probabilities mean what they say, the interval reaches the dashed line.": "若概率名副其实，区间会触及虚线。",
    "Of {what:t}": "{what:t}",
    "the decisions' probabilities": "决策概率",
    "the next token's probability": "下一词元的概率",
    "Bins of equally many judged decisions. The dashed line is the mean probability of high risk that the candidate gave, the dot the share that was of high risk.": (
        "每组的决策数相同。虚线是候选给出的高风险平均概率，圆点是其中实际为高风险的比例。"
    ),
    "Bins of equally many scored tokens. The dashed line is the mean probability that the candidate gave to its likeliest token, the dot the share where that token came.": (
        "每组的评分词元数相同。虚线是候选给最可能词元的平均概率，圆点是该词元实际出现的比例。"
    ),
    "The same texts perturbed: paired differences to the clean ones with their {confidence} intervals, texts that a perturbation leaves as they are included. The worst slice is the tag of at least 10 clusters in which perplexity rises most.": (
        "对相同文本施加扰动：与原文的配对差值及其 {confidence} 区间，扰动未改变的文本也计算在内。最差切片是至少含 10 个簇、困惑度上升最多的标签。"
    ),
    "Paired differences to the clean texts.": "与原文的配对差值。",
    "Paired by sample: both models on exactly the same texts, decisions and dialogue trials. The line is no change.": (
        "按样本配对：两个模型使用完全相同的文本、决策和对话试验。竖线表示无变化。"
    ),
    "same content, spelt otherwise: surprise is counted on the units of the clean text": "内容相同、写法不同：惊异度按原文的单位计",
    "content added, nothing lost": "增加了内容，未丢失内容",
    "content lost: a change of meaning": "丢失了内容：含义改变",
    "another content: a change of meaning": "换成了别的内容：含义改变",
    "{changed} of {all} texts changed": "{all} 个文本中 {changed} 个被改变",
    "only {share} of the texts could be compared": "只有 {share} 的文本可以比较",
    "{slice} {change} (of {n})": "{slice} {change}（共 {n} 个切片）",
    "The texts that surprised the candidate most. Marked tokens had a probability below": "最让候选模型意外的文本。有标记的词元概率低于",
    "{nats} nats a token over {n} tokens": "每词元 {nats} 奈特，共 {n} 个词元",
    # Dialogues.
    "{n} failed": "{n} 个失败",
    "{n} passed": "{n} 个通过",
    "{n} without result": "{n} 个无结果",
    "Failures first, those that the baseline passed before the others.": "失败的在前，其中基线通过的排在最前。",
    "{shown} dialogues are shown; {n} more are in the evidence (turns.parquet).": "此处显示 {shown} 个对话；另有 {n} 个在证据中（turns.parquet）。",
    "… {n} more characters are in the evidence": "… 另有 {n} 个字符在证据中",
    "… {n} more turns are in the evidence (turns.parquet)": "… 另有 {n} 轮在证据中（turns.parquet）",
    "… and {n} more, see report.html": "……另有 {n} 个，见 report.html",
    "{passed} of {trials} trials passed": "{trials} 次试验中 {passed} 次通过",
    "no trial was recorded": "没有记录任何试验",
    "Trial {n}": "第 {n} 次试验",
    "User, turn {n}": "用户，第 {n} 轮",
    "turn {n}: {what:t}": "第 {n} 轮：{what:t}",
    "intent {intent}": "意图 {intent}",
    "intent {want}, got {got}": "意图应为 {want}，实为 {got}",
    "handover {want}": "转人工 {want}",
    "handover {want}, got {got}": "转人工应为 {want}，实为 {got}",
    "max_ms {want}": "时限 {want} ms",
    "max_ms {want}, got {got}": "时限 {want} ms，实为 {got}",
    "slots {want}": "槽位 {want}",
    "slots {want}, got {got}": "槽位应为 {want}，实为 {got}",
    "contains {want}": "应包含 {want}",
    "matches {want}": "应匹配 {want}",
    "forbidden {want}": "不得出现 {want}",
    "recalls {want}": "应记得 {want}",
    "never {want}": "始终不得出现 {want}",
    "user: {reason}": "模拟用户：{reason}",
    "handed over in turn {n}": "已在第 {n} 轮转人工",
    "the session takes no more turns: {reason}": "会话不再接受新的轮次：{reason}",
    "order {want}": "顺序 {want}",
    "end_state {want}": "结束状态 {want}",
    "the reply is empty": "回复为空",
    "satisfaction {value}": "满意度 {value}",
    "first token {time}": "首词元 {time}",
    "{reused} of {all} tokens reused": "{all} 个词元中复用 {reused} 个",
    "{status:t}: no reason given": "{status:t}：未给出原因",
    "ok: {reason:t}": "正常：{reason:t}",
    "error: {reason:t}": "错误：{reason:t}",
    "model fault: {reason:t}": "模型故障：{reason:t}",
    "infrastructure fault: {reason:t}": "基础设施故障：{reason:t}",
    "truncated: {reason:t}": "被截断：{reason:t}",
    "not played: {reason:t}": "未进行：{reason:t}",
    "not played: {reason:t}, as expected": "未进行：{reason:t}，符合预期",
    "the server ended the session in turn {n} ({state})": "服务器在第 {n} 轮结束了会话（{state}）",
    # Notices.
    "{moved:t} by force. Reason given: {reason}.": "{moved:t}，系强制执行。所给理由：{reason}。",
    "{moved:t} by force, although the run {problem:t}. Reason given: {reason}.": "{moved:t}，系强制执行，尽管该运行{problem:t}。所给理由：{reason}。",
    "{moved:t} on a {verdict:t} under policy {policy} in scenario {scenario}.": "{moved:t}，依据场景 {scenario}、策略 {policy} 下的“{verdict:t}”。",
    "{alias} was moved from {before} to {after} on {at} by {who} (run {run})": "{who} 于 {at} 将 {alias} 从 {before} 改为 {after}（运行 {run}）",
    "was measured under scenario {scenario}, {alias} demands {demanded}": "是在场景 {scenario} 下测量的，而 {alias} 要求 {demanded}",
    "has no verdict under policy {policy}, which {alias} demands": "没有 {alias} 所要求的策略 {policy} 下的结论",
    "has the verdict {verdict:t} under the policy that {alias} demands": "在 {alias} 所要求的策略下的结论是“{verdict:t}”",
    "Forced promotions can't be shown, since the registry can't be read: {problem}.": "无法读取注册表，因此不能显示强制晋级：{problem}。",
    "First release: rules about change against a baseline were not applied, by explicit choice.": "首次发布：按明确的选择，未适用与基线对比的变化规则。",
    "The identity of the {role:t}, {digest}, is {note:t}.": "{role:t}的身份 {digest} {note:t}。",
    "The run is partial: not everything planned was measured.": "运行不完整：计划的内容没有全部测量。",
    "Records of the {side:t} that are not ok: {errors:l}.": "{side:t}中不正常的记录：{errors:l}。",
    "{n} text {status:t}": "{n} 个文本{status:t}",
    "{n} risk {status:t}": "{n} 个决策{status:t}",
    "{n} turn {status:t}": "{n} 轮{status:t}",
    "{metric} of the {side:t}: {warning:t}.": "{side:t}的 {metric}：{warning:t}。",
    "Clearly worse than the baseline, and no rule watches it: {metrics}.": "明显差于基线、但没有规则监视的指标：{metrics}。",
    "No drift beyond chance: the scenario's texts resemble the {n} texts of recent traffic (p = {p}).": "没有超出偶然的漂移：场景文本与近期流量的 {n} 个文本相似（p = {p}）。",
    "Drift: the {n} texts of recent traffic differ from the scenario's texts (p = {p}; total variation {distances}).": (
        "漂移：近期流量的 {n} 个文本与场景文本不同（p = {p}；总变差 {distances}）。"
    ),
    "Drift: the {n} texts of recent traffic differ from the scenario's texts (p = {p}; total variation {distances}). {share} of them lie where the scenario has no text: add such texts.": (
        "漂移：近期流量的 {n} 个文本与场景文本不同（p = {p}；总变差 {distances}）。其中 {share} 落在场景没有文本的地方：请补充这类文本。"
    ),
    "Satisfaction is predicted by a model that learnt from {data:t}; {error:t}.": "满意度由一个模型预测，该模型学自{data:t}；{error:t}。",
    "generated examples, not from people's ratings": "生成的样例，而非真人评分",
    "people's ratings": "真人评分",
    "examples of unknown origin": "来源不明的样例",
    "generated examples": "生成的样例",
    "its error isn't known and isn't in the interval": "其误差未知，未计入区间",
    "its mean absolute error of {points} points widens the interval": "其平均绝对误差 {points} 分已加宽区间",
    # Notes beside metrics.
    "a calibrated model would show {value} with as few decisions": "同样少的决策下，校准良好的模型也会显示 {value}",
    "{n} texts far from the others": "{n} 个文本与其余相去甚远",
    "{share} within {ms} ms": "{share} 在 {ms} ms 以内",
    "p95 {value}": "p95 {value}",
    "p99 {value}": "p99 {value}",
    "effective sample size {n} texts": "有效样本量 {n} 个文本",
    "{share} of the target covered by no text": "目标的 {share} 没有文本覆盖",
    "no difference from the target beyond chance: every text counts alike": "与目标没有超出偶然的差异：每个文本权重相同",
    "distance to the target in {name} {before} → {after}": "在 {name} 上与目标的距离 {before} → {after}",
    "joint {before} → {after}": "联合 {before} → {after}",
    # Evidence.
    "Everything above can be recomputed from the run folder. This command checks every digest, and computes results, comparison and verdict again:": (
        "以上内容均可由运行文件夹重新算出。以下命令核验每个摘要，并重新计算结果、对比和结论："
    ),
    "Conservation: tokens encoded = scored + unconditioned, over texts that are ok; every other text is counted by its status": (
        "守恒：编码的词元 = 评分的 + 无前文的（只计正常文本）；其余文本按状态计数"
    ),
    "{ok} of {texts} texts scored: {tokens} tokens and {bytes} bytes, each exactly once; {lost:l}.": (
        "{texts} 个文本中 {ok} 个已评分：{tokens} 个词元、{bytes} 个字节，各恰好一次；{lost:l}。"
    ),
    "{ok} of {texts} texts scored: {tokens} tokens and {bytes} bytes, each exactly once; {first} first tokens ({rest} bytes) have nothing before them and are counted, not scored; {lost:l}.": (
        "{texts} 个文本中 {ok} 个已评分：{tokens} 个词元、{bytes} 个字节，各恰好一次；{first} 个首词元（{rest} 字节）没有前文，只计数不评分；{lost:l}。"
    ),
    "none left out": "无一遗漏",
    "{n} in error": "{n} 个出错",
    "{n} skipped": "{n} 个已跳过",
    "{n} truncated": "{n} 个被截断",
}
