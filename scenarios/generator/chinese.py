"""Chinese conversations: the counterpart of the English ones, exchange by exchange."""

from scenarios.generator.language import Exchange, Language, Topic
from scenarios.generator.vocabulary import CITIES_ZH, NAMES_ZH

_SUMMARY = "request_summary"

_TOPICS = (
    Topic(
        Exchange(
            "card_lost",
            "card_lost",
            ("我的银行卡丢了。", "我丢了银行卡。", "我昨天丢了银行卡。", "我的银行卡被偷了。"),
            "很抱歉，我已经挂失了您的银行卡。",
            ("挂失",),
        ),
        Exchange(
            "card_lost_summary",
            _SUMMARY,
            ("新卡是给谁的？", "新卡是哪个账户的？"),
            "新卡给：{name}，账户（{account}）。",
            ("新卡",),
        ),
        ("name", "account"),
    ),
    Topic(
        Exchange(
            "transfer",
            "transfer",
            (
                "请转账¥{amount}给：{payee}。",
                "我要转账¥{amount}给：{payee}。",
                "转账¥{amount}，收款人：{payee}。",
                "我想转账¥{amount}，收款人：{payee}。",
            ),
            "好的，今天转账¥{amount}给：{payee}。",
            ("{amount}", "{payee}"),
        ),
        Exchange(
            "transfer_summary",
            _SUMMARY,
            ("请重复我的转账。", "我转账多少，给谁？"),
            "您从账户（{account}）转账¥{amount}给：{payee}。",
            ("转账",),
        ),
        ("amount", "payee", "account"),
    ),
    Topic(
        Exchange(
            "fee_refund",
            "fee_dispute",
            (
                "你们多收了我¥{amount}。",
                "我的账户被多收了¥{amount}。",
                "有一笔¥{amount}收错了。",
                "这笔¥{amount}是错的。",
            ),
            "很抱歉，我们会退还¥{amount}。",
            ("退还", "{amount}"),
        ),
        Exchange(
            "fee_refund_summary",
            _SUMMARY,
            ("我会收到多少退款？", "请重复我的退款。"),
            "我们会退还¥{amount}到账户（{account}）。",
            ("退还",),
        ),
        ("amount", "account"),
    ),
    Topic(
        Exchange(
            "loan_status",
            "loan_status",
            (
                "我申请了贷款¥{amount}。",
                "我的贷款¥{amount}怎么样了？",
                "我在等贷款¥{amount}。",
                "我的贷款¥{amount}批准了吗？",
            ),
            "您的贷款¥{amount}正在审核。",
            ("贷款", "{amount}"),
        ),
        Exchange(
            "loan_status_summary",
            _SUMMARY,
            ("我的贷款是什么情况？", "请重复我的贷款申请。"),
            "好的，{name}，您的贷款¥{amount}正在审核。",
            ("贷款",),
        ),
        ("name", "amount"),
    ),
    Topic(
        Exchange(
            "address_change",
            "address_change",
            (
                "我搬家了，新地址：{city}。",
                "我的新地址是：{city}。",
                "我现在住在：{city}。",
                "请改我的地址：{city}。",
            ),
            "好的，您的地址已经改到：{city}。",
            ("地址", "{city}"),
        ),
        Exchange(
            "address_change_summary",
            _SUMMARY,
            ("我现在的地址是哪里？", "请重复我的新地址。"),
            "好的，{name}，您的新地址是：{city}。",
            ("地址",),
        ),
        ("name", "city"),
    ),
    Topic(
        Exchange(
            "savings_plan",
            "savings_plan",
            (
                "我想每月存¥{amount}。",
                "请开始每月存¥{amount}。",
                "我要每月存¥{amount}。",
                "我可以每月存¥{amount}吗？",
            ),
            "好的，您的存款计划是每月¥{amount}。",
            ("存款计划", "{amount}"),
        ),
        Exchange(
            "savings_plan_summary",
            _SUMMARY,
            ("我现在每月存多少？", "请重复我的存款计划。"),
            "您每月从账户（{account}）存¥{amount}。",
            ("每月",),
        ),
        ("amount", "account"),
    ),
)

_QUESTIONS = (
    Exchange(
        "opening_hours",
        "general_info",
        ("网点几点开门？", "你们几点开门？", "网点今天开门吗？", "请问营业时间？"),
        "我们的网点在工作日九点到五点开门。",
        ("九点到五点",),
    ),
    Exchange(
        "transfer_fee",
        "fee_question",
        ("转账要手续费吗？", "转账手续费是多少？", "转账要多少钱？", "转账收费吗？"),
        "所有客户转账都不收手续费。",
        ("不收手续费",),
    ),
    Exchange(
        "card_delivery",
        "card_info",
        ("新卡要等几天？", "新卡什么时候到？", "我什么时候收到新卡？", "办新卡要多少天？"),
        "新卡大约五个工作日会寄到您的地址。",
        ("五个工作日",),
    ),
    Exchange(
        "card_limit",
        "card_info",
        ("银行卡每天的限额是多少？", "我的卡限额是多少？", "每天可以用卡付多少？", "我的卡有限额吗？"),
        "您的银行卡每天的限额是一千元。",
        ("一千元",),
    ),
    Exchange(
        "interest_rate",
        "rate_question",
        ("存款利率是多少？", "你们的利率是多少？", "存款有多少利息？", "请问存款的利率？"),
        "我们的存款利率是每年百分之二。",
        ("百分之二",),
    ),
    Exchange(
        "overdraft",
        "rate_question",
        ("透支利率是多少？", "透支要多少利息？", "透支要多少钱？", "我可以透支吗？"),
        "透支的利率是每年百分之九，您还了就不收。",
        ("百分之九",),
    ),
)

CHINESE = Language(
    locale="zh",
    greeting=Exchange(
        "greeting",
        "greeting",
        (
            "您好，我的名字：{name}，账户（{account}）。",
            "你好，我叫：{name}，我的账户（{account}）。",
            "早上好，我是：{name}，账户（{account}）。",
            "您好，我是：{name}。账户（{account}）。",
        ),
        "您好，{name}，您的账户（{account}），请问要办什么？",
        ("{name}", "{account}"),
    ),
    topics=_TOPICS,
    questions=_QUESTIONS,
    balance=Exchange(
        "balance",
        "balance",
        ("我的余额是多少？", "我有多少钱？", "请告诉我余额。", "我的账户里有多少钱？"),
        "请先告诉我您的名字和账户。",
        ("名字和账户",),
    ),
    thanks=Exchange(
        "thanks",
        "thanks",
        ("谢谢，再见。", "谢谢，没有了。", "谢谢你。", "好的，谢谢。"),
        "不客气，祝您今天开心。",
        ("不客气",),
    ),
    summary_any=("请重复我的申请。", "请再说一下我要办什么。", "请再看一下我的申请。"),
    handover=(
        Exchange(
            "contact_human",
            "contact_human",
            ("我要人工客服。", "请转人工。", "我想和人工说话。", "可以找人工吗？"),
            "正在为您转接人工客服。",
            (),
        ),
        Exchange(
            "complaint",
            "complaint_escalation",
            ("我要投诉。", "我很生气，我要投诉。", "这不行，我要投诉你们。", "我要找经理投诉。"),
            "正在为您转接人工客服。",
            (),
        ),
    ),
    listed=("账户（{account}）", "¥{amount}", "我叫：{name}", "给：{payee}", "新地址：{city}"),
    read_back=("请记下我的资料：", "已经记下：", "，", "。"),
    first_turn="我的账户（{account}）。",
    names=NAMES_ZH,
    cities=CITIES_ZH,
    persona="{name}，个人客户，说话简短，会问前面说过的内容",
    never=("您的密码", "告诉我密码"),
    ledger={
        "name": r"(?:您好，|好的，|新卡给：)(\w+)，",
        "account": r"账户（(\d+)）",
        "amount": r"¥(\d+)",
        "payee": r"¥\d+给：(\w+)",
        "city": r"(?:改到|地址是)：(\w+)",
    },
)
