"""What to do when a metric is bad: the registry's actions."""

ACTIONS: dict[str, str] = {
    "5 % above the baseline: read the worst samples, then compare its training data with the baseline's.": "高于基线 5 %：先看最差样本，再把训练数据与基线的比较。",
    "5 % above the baseline: as perplexity/token; it is the one to compare across tokenizers.": "高于基线 5 %：同 perplexity/token；跨分词器比较时用它。",
    "2 % above the baseline: as perplexity/token; comparable across tokenizers and languages.": "高于基线 2 %：同 perplexity/token；可跨分词器和语言比较。",
    "10 % above the baseline: this class got worse than the rest; look for its tokens in the training data and raise their share.": (
        "高于基线 10 %：这一类比其余的变差更多；在训练数据中查找其词元并提高占比。"
    ),
    "5 % above the baseline while perplexity/oov holds: the loss is general, not one of new words.": "高于基线 5 % 而 perplexity/oov 不变：损失是普遍的，不是新词造成的。",
    "above 0.05: the texts have moved away from the training data; refresh the word counts or the data.": "高于 0.05：文本已偏离训练数据；更新词频或数据。",
    "20 % from the baseline either way: up is a model unsure of itself, down with worse perplexity is one that is sure and wrong.": (
        "与基线相差 20 %（无论方向）：上升说明模型没有把握，下降且困惑度变差说明模型自信而错误。"
    ),
    "falling below the baseline by 0.2: right answers stand less clear of their rivals; greedy decoding will flip more often.": (
        "低于基线 0.2：正确答案与竞争者的差距变小；贪心解码会更常翻转。"
    ),
    "20 % above the baseline: the right token has slipped down the list; read the worst tokens.": "高于基线 20 %：正确词元的名次下滑；查看最差词元。",
    "0.02 below the baseline: greedy replies will differ; read the worst tokens of this class.": "低于基线 0.02：贪心回复会有所不同；查看这一类的最差词元。",
    "below the operating point: high-risk cases pass unseen; add labelled ones and recalibrate.": "低于工作点：高风险案件被漏过；增加有标注的案件并重新校准。",
    "above 0.10: good customers are turned away; look at the decisions nearest to the threshold.": "高于 0.10：正常客户被拒；查看离阈值最近的决策。",
    "below 0.5: more than half of the rejections are wrong; look at the score histogram by label.": "低于 0.5：半数以上的拒绝是错的；按标签查看分数直方图。",
    "above the baseline: more or dearer wrong decisions; weigh the operating point against the cost matrix.": "高于基线：错误决策更多或代价更高；按成本矩阵权衡工作点。",
    "below 0.8: the labels' log-probabilities don't separate the cases; check prompts and training data.": "低于 0.8：标签的对数概率区分不开案件；检查提示词和训练数据。",
    "above 0.10 and above expected_if_calibrated: the probabilities overstate; rescale them before use.": "高于 0.10 且高于 expected_if_calibrated：概率偏高；使用前重新缩放。",
    "above of_the_base_rate: a constant guess would do better; look at the reliability curve.": "高于 of_the_base_rate：固定猜测都更好；查看可靠性曲线。",
    "above 0.05 and above expected_if_calibrated: the probabilities of the next token overstate or understate; compare mean_confidence with accuracy, and mind it before sampling or thresholds rely on them.": (
        "高于 0.05 且高于 expected_if_calibrated：下一词元的概率偏高或偏低；比较 mean_confidence 与 accuracy，在采样或阈值依赖它之前要留意。"
    ),
    "above of_the_base_rate: the confidence says less than the accuracy alone; look at the reliability curve.": "高于 of_the_base_rate：置信度还不如准确率本身说明问题；查看可靠性曲线。",
    "below 0.8: open the failed dialogues; the first failed expectation says where it went wrong.": "低于 0.8：打开失败的对话；第一个不符的期望说明哪里出了错。",
    "below 0.9: facts are lost between turns; look at the attention window and dropped turns.": "低于 0.9：事实在轮次之间丢失；查看注意力窗口和被丢弃的轮次。",
    "below 0.9: colleagues get cases that the model could close; raise the hand-over threshold.": "低于 0.9：模型能解决的案件转给了同事；提高转人工阈值。",
    "below 0.95: customers who need a person don't get one; check intents and words of the flow.": "低于 0.95：需要人工的客户没有得到人工；检查流程的意图和用词。",
    "0.05 above the baseline: compare handover_precision and handover_recall before the threshold is touched.": "高于基线 0.05：改动阈值之前，先比较 handover_precision 和 handover_recall。",
    "above 1: hand-over comes, but late; lower its threshold or add words.": "高于 1：转人工来得太晚；降低其阈值或增加用词。",
    "below 3.5: read the lowest dialogues; mind the predictor's own error beside the value.": "低于 3.5：查看得分最低的对话；同时注意预测器自身的误差。",
    "below 0.8: open the unresolved dialogues by intent.": "低于 0.8：按意图打开未解决的对话。",
    "one turn above the baseline: the model asks again for what it was told.": "比基线多一轮：模型重复询问已告知的内容。",
    "above the baseline: its details say which kind of cost grew; open those dialogues.": "高于基线：明细说明哪类成本增长；打开那些对话。",
    "above its budget: look at prefill, prompt length and cache/reuse_ratio.": "超出预算：查看预填充、提示词长度和 cache/reuse_ratio。",
    "above 15 ms: look at intent, hand-over and satisfaction timings of the server.": "高于 15 ms：查看服务器的意图、转人工和满意度耗时。",
    "20 % above the baseline: look at the engine, batch shapes and the machine's load.": "高于基线 20 %：查看引擎、批次形状和机器负载。",
    "below 0.85: look at the attention window and the cache budget.": "低于 0.85：查看注意力窗口和缓存预算。",
    "below 0.95: the model misses facts that stand in the same text; its training data lack such questions.": "低于 0.95：模型答不出同一文本中的事实；其训练数据缺少这类问题。",
    "above 0.1: what is recalled in one turn is lost over several; look at the attention window and dropped turns.": "高于 0.1：单轮能记住的内容跨多轮就丢失；查看注意力窗口和被丢弃的轮次。",
    "below 0.9: open the dialogues that fail this kind of expectation.": "低于 0.9：打开未满足这类期望的对话。",
    "below 1: the server lays prompts out otherwise than the bundle's chat template and tokenizer; whatever the replies are worth, they answer other prompts: serve the bundle with a sandbox of this version.": (
        "低于 1：服务器拼接提示词的方式与模型包的对话模板和分词器不同；不论回复好坏，它们回答的是别的提示词：请用本版本的 sandbox 提供该模型包。"
    ),
    "below 1: equal conversations got different replies though greedy decoding is promised; look at the server's sampling and its cache.": (
        "低于 1：承诺了贪心解码，但相同的会话得到不同的回复；查看服务器的采样和缓存。"
    ),
    "{metric} rises {alarm:t} under {perturbation}: the model depends on how texts are written; add such texts to the training data, the worst slice first.": (
        "{metric} 在 {perturbation} 下上升{alarm:t}：模型依赖文本的写法；把这类文本加入训练数据，最差切片优先。"
    ),
    "{metric} falls {alarm:t} under {perturbation}: the model depends on how texts are written; add such texts to the training data, the worst slice first.": (
        "{metric} 在 {perturbation} 下下降{alarm:t}：模型依赖文本的写法；把这类文本加入训练数据，最差切片优先。"
    ),
    "by 20 %": "达 20 %",
    "by 0.02": "达 0.02",
    "clearly": "明显",
    "it comes from {source}: {action:t}": "它来自 {source}：{action:t}",
    "{alarm} % above the baseline: {action:t}": "高于基线 {alarm} %：{action:t}",
    "above {alarm}: {action:t}": "高于 {alarm}：{action:t}",
    "below {alarm}: {action:t}": "低于 {alarm}：{action:t}",
}
