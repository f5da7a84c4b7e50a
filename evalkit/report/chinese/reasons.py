"""Why a metric has no value, or no interval."""

REASONS: dict[str, str] = {
    "not measured": "未测量",
    "not compared": "未比较",
    "the value isn't a finite number": "数值不是有限数",
    # Texts and tokens.
    "no text was scored": "没有文本被评分",
    "no token of the texts belongs to it": "文本中没有属于这一类的词元",
    "some texts hold Chinese or Japanese, which has no words without a declared segmenter (`words: {cjk: jieba}` segments Chinese, none segments Japanese); use perplexity/byte": (
        "有些文本含中文或日文，不声明分词器就没有“词”（`words: {cjk: jieba}` 可切分中文，没有工具切分日文）；请用 perplexity/byte"
    ),
    "the model has no training word counts and none are pinned": "模型没有训练词频，也没有固定的词频",
    "the model has no training token counts and none are pinned": "模型没有训练词元频次，也没有固定的频次",
    "no frequency classes are declared": "没有声明频率类别",
    "no oov class is declared": "没有声明 oov 类别",
    "no glossary is given": "没有给出术语表",
    "the pinned token counts ({source}) belong to another tokenizer": "固定的词元频次（{source}）属于另一个分词器",
    "the backend gives no {what} of tokens: an endpoint gives log-probabilities alone": "后端不提供词元的 {what}：端点只给出对数概率",
    "the evidence holds no rank and margin of the tokens, from which the top-1 probability follows": "证据中没有词元的名次和间距，无法得出 top-1 概率",
    "the first tokens of most texts surprise the model beyond any guess: it may need a BOS token that the tokenizer or `window.prefix` doesn't give it": (
        "大多数文本的首词元让模型意外得超过瞎猜：可能需要分词器或 `window.prefix` 没有提供的 BOS 词元"
    ),
    # Decisions.
    "the judged part holds no scored decision": "评判部分没有已评分的决策",
    "the judged part lacks one of the two kinds of decisions": "评判部分缺少两类决策之一",
    "the judged part holds no scored high-risk decision": "评判部分没有已评分的高风险决策",
    "the judged part holds no scored decision of the other labels": "评判部分没有其他标签的已评分决策",
    "the calibration part holds no scored high-risk decision, so no threshold can be chosen": "校准部分没有已评分的高风险决策，无法选择阈值",
    "no judged decision reaches the threshold": "没有决策达到阈值",
    "the scenario declares no cost of wrong decisions (risk.costs)": "场景没有声明错误决策的成本（risk.costs）",
    # Dialogues and latency.
    "no dialogue has {k} independent trials with a result": "没有对话有 {k} 次独立且有结果的试验",
    "nothing varies between trials, so they count as one; k = {k} needs a source of variation": "各次试验之间没有变化，因此只算一次；k = {k} 需要变化来源",
    "no dialogue asks for a fact": "没有对话询问事实",
    "no recall probe was asked in a single turn": "没有在单轮中提出的记忆探测",
    "nothing was checked": "没有任何检查",
    "replies are drawn at random (temperature above 0)": "回复是随机抽取的（温度高于 0）",
    "no conversation was repeated word for word": "没有逐字重复的会话",
    "the flow decides no hand-over": "流程不决定转人工",
    "the flow predicts no satisfaction": "流程不预测满意度",
    "the engine doesn't tell what it reused": "引擎没有说明复用了什么",
    "no dialogue has a second turn that was answered": "没有对话有得到回答的第二轮",
    "no trial gave a result": "没有试验给出结果",
    "no dialogue was handed over": "没有对话转人工",
    "no dialogue needs a hand-over": "没有对话需要转人工",
    "every dialogue needs a hand-over": "每个对话都需要转人工",
    "no dialogue was resolved": "没有对话得到解决",
    "the scenario declares no costs of a dialogue (dialogues.costs)": "场景没有声明对话的成本（dialogues.costs）",
    "the engine doesn't tell how many tokens it generated": "引擎没有说明生成了多少词元",
    "no turn was timed": "没有轮次被计时",
    "half of the turns or more failed: the median is infinite": "半数或更多的轮次失败：中位数为无穷大",
    # Business figures and metrics of one's own.
    "outside the calibration history: {source} is {value}, seen were {low} to {high}": "超出校准历史：{source} 为 {value}，历史范围是 {low} 至 {high}",
    "{offline} is outside the calibration history": "{offline} 超出校准历史",
    "the mapping isn't {way} between {low} and {high}, as it declares": "映射在 {low} 与 {high} 之间并非如其声明的 {way}",
    "a prediction isn't compared in pairs; compare {metric}": "预测值不作配对比较；请比较 {metric}",
    "{metric} has no value: {reason:t}": "{metric} 没有数值：{reason:t}",
    "it isn't among the metrics of the run": "它不在本次运行的指标中",
    "the mapping gives no finite number": "映射没有给出有限数",
    "{source} has none": "{source} 没有",
    "the interval of {source} reaches outside the calibration history ({low} to {high}): that end is unknown": "{source} 的区间超出校准历史（{low} 至 {high}）：那一端未知",
    "the run has no usable {kind} record that it speaks of": "本次运行没有它所需的可用 {kind} 记录",
    "compute gives no finite number for the sums": "compute 没有为总和给出有限数",
    # Re-weighted texts and perturbations.
    "how far a weighted calibration error lies above the truth isn't known; see that of all texts": "加权校准误差高出真值多少未知；请看全部文本的校准误差",
    "the weights leave an effective sample size of {n} texts or clusters that hold any of it; {least} are needed": "加权后有效样本量只有 {n} 个含有它的文本或簇；需要 {least}",
    "{share} of the target lies where no validation text is, more than the {allowed} allowed; add such texts to the validation set": (
        "目标的 {share} 没有验证文本覆盖，超过允许的 {allowed}；请补充这类验证文本"
    ),
    "the weights don't reach the target: a total variation of {left} is left on {name}, more than the {allowed} allowed; add validation texts like those of the target": (
        "加权达不到目标：{name} 上仍有 {left} 的总变差，超过允许的 {allowed}；请补充与目标相似的验证文本"
    ),
    "the weights leave an effective sample size of {n}, fewer than the {least} needed; add validation texts like those of the target": (
        "加权后有效样本量为 {n}，少于所需的 {least}；请补充与目标相似的验证文本"
    ),
    "the target holds {n} texts, fewer than the effective sample size of {size}, so that its own sampling error would count and isn't in the interval; give more of them, or draw fewer validation texts": (
        "目标只有 {n} 个文本，少于有效样本量 {size}，其自身的抽样误差不可忽略且未计入区间；请多给一些，或减少验证文本"
    ),
    "the target holds no text": "目标没有文本",
    "the perturbation changes none of the {n} texts": "该扰动没有改变 {n} 个文本中的任何一个",
    # Intervals.
    "{n} bootstrap resamples of {clusters} clusters don't reach a confidence of {confidence}": "对 {clusters} 个簇的 {n} 次重抽样达不到 {confidence} 的置信度",
    "only {n} independent clusters; an interval needs {least}": "只有 {n} 个独立的簇；区间需要 {least} 个",
    "only {n} clusters, and the standard error is undefined on too many resamples": "只有 {n} 个簇，且标准误在过多重抽样上无定义",
    "the value itself is undefined": "数值本身无定义",
    "not a share of counted outcomes": "不是计数结果的比例",
    "undefined on {missing} of {all} bootstrap resamples": "{all} 次自助重抽样中有 {missing} 次无定义",
    "undefined on {n} resamples": "有 {n} 次重抽样无定义",
    "no variation between the clusters: the interval would be zero wide": "簇之间没有变化：区间宽度会为零",
    "the change doesn't vary between the clusters": "变化在簇之间没有差异",
    "the baseline is 0: a relative change is undefined; use max_increase or max_decrease": "基线为 0：相对变化无定义；请用 max_increase 或 max_decrease",
    "candidate and baseline have no sample in common": "候选与基线没有共同的样本",
    "the candidate's value is undefined": "候选的数值无定义",
    "the baseline's value is undefined": "基线的数值无定义",
    "the candidate's value isn't finite": "候选的数值不是有限数",
    "the baseline's value isn't finite": "基线的数值不是有限数",
    "the metric has no value of a single cluster": "该指标没有单个簇的数值",
    "no cluster has a value of both models": "没有簇同时有两个模型的数值",
    "each model has a denominator of its own, so the outcomes don't pair up": "两个模型的分母各不相同，结果无法配对",
}
