"""English conversations."""

from scenarios.generator.language import Exchange, Language, Topic
from scenarios.generator.vocabulary import CITIES_EN, NAMES_EN

_SUMMARY = "request_summary"

_TOPICS = (
    Topic(
        Exchange(
            "card_lost",
            "card_lost",
            (
                "I have lost my card.",
                "My card is gone, I lost it.",
                "I lost my card yesterday.",
                "My card was stolen.",
            ),
            "I am sorry to hear that. I have blocked your card.",
            ("blocked",),
        ),
        Exchange(
            "card_lost_summary",
            _SUMMARY,
            ("Who is the new card for?", "Which account is the new card for?"),
            "The new card is for {name}, account #{account}.",
            ("card",),
        ),
        ("name", "account"),
    ),
    Topic(
        Exchange(
            "transfer",
            "transfer",
            (
                "Please send €{amount} to {payee}.",
                "I want to send €{amount} to {payee}.",
                "Please transfer €{amount} to {payee}.",
                "I need a transfer of €{amount} to {payee}.",
            ),
            "I will send €{amount} to {payee} today.",
            ("{amount}", "{payee}"),
        ),
        Exchange(
            "transfer_summary",
            _SUMMARY,
            ("Please repeat my transfer.", "What do I send, and to whom?"),
            "You send €{amount} to {payee} from account #{account}.",
            ("send",),
        ),
        ("amount", "payee", "account"),
    ),
    Topic(
        Exchange(
            "fee_refund",
            "fee_dispute",
            (
                "I was charged €{amount} by mistake.",
                "You charged me €{amount} too much.",
                "There is a wrong charge of €{amount}.",
                "I see a charge of €{amount} that is wrong.",
            ),
            "I am sorry. We will refund €{amount}.",
            ("refund", "{amount}"),
        ),
        Exchange(
            "fee_refund_summary",
            _SUMMARY,
            ("How much do I get back?", "Please repeat my refund."),
            "You get €{amount} back on account #{account}.",
            ("back",),
        ),
        ("amount", "account"),
    ),
    Topic(
        Exchange(
            "loan_status",
            "loan_status",
            (
                "I applied for a loan of €{amount}.",
                "What about my loan of €{amount}?",
                "I wait for my loan of €{amount}.",
                "Is my loan of €{amount} approved?",
            ),
            "Your loan of €{amount} is being checked.",
            ("loan", "{amount}"),
        ),
        Exchange(
            "loan_status_summary",
            _SUMMARY,
            ("What do you know about my loan?", "Please repeat my loan request."),
            "Dear {name}, your loan of €{amount} is being checked.",
            ("loan",),
        ),
        ("name", "amount"),
    ),
    Topic(
        Exchange(
            "address_change",
            "address_change",
            (
                "I have moved to {city}.",
                "My new address is in {city}.",
                "I live in {city} now.",
                "Please change my address, I moved to {city}.",
            ),
            "I have changed your address to {city}.",
            ("address", "{city}"),
        ),
        Exchange(
            "address_change_summary",
            _SUMMARY,
            ("Which address do you have now?", "Please repeat my new address."),
            "Dear {name}, your new address is in {city}.",
            ("address",),
        ),
        ("name", "city"),
    ),
    Topic(
        Exchange(
            "savings_plan",
            "savings_plan",
            (
                "I want to save €{amount} a month.",
                "Please start a savings plan of €{amount}.",
                "I would like to save €{amount} each month.",
                "Can I save €{amount} a month?",
            ),
            "Your savings plan of €{amount} starts now.",
            ("savings plan", "{amount}"),
        ),
        Exchange(
            "savings_plan_summary",
            _SUMMARY,
            ("How much do I save now?", "Please repeat my savings plan."),
            "You save €{amount} a month from account #{account}.",
            ("save",),
        ),
        ("amount", "account"),
    ),
)

_QUESTIONS = (
    Exchange(
        "opening_hours",
        "general_info",
        (
            "When is the branch open?",
            "What are your opening hours?",
            "When do you open?",
            "Is the branch open today?",
        ),
        "Our branch is open from nine to five on all working days.",
        ("nine to five",),
    ),
    Exchange(
        "transfer_fee",
        "fee_question",
        (
            "What does a transfer cost?",
            "Is there a fee for a transfer?",
            "How much is the transfer fee?",
            "Do I pay for a transfer?",
        ),
        "A transfer in euros is free of charge for all customers.",
        ("free of charge",),
    ),
    Exchange(
        "card_delivery",
        "card_info",
        (
            "How long does a new card take?",
            "When will my card arrive?",
            "How soon do I get a card?",
            "When does a new card come?",
        ),
        "A new card takes about five working days by post.",
        ("five working days",),
    ),
    Exchange(
        "card_limit",
        "card_info",
        (
            "What is my daily card limit?",
            "How much can I pay by card a day?",
            "What is the limit of my card?",
            "Is there a card limit?",
        ),
        "The daily limit of your card is one thousand euros.",
        ("one thousand",),
    ),
    Exchange(
        "mobile_app",
        "general_info",
        (
            "How do I get the mobile app?",
            "Where is your app?",
            "Do you have a mobile app?",
            "Can I use an app?",
        ),
        "You find our mobile app in the store of your phone.",
        ("store of your phone",),
    ),
    Exchange(
        "interest_rate",
        "rate_question",
        (
            "What is the interest rate for savings?",
            "How much interest do I get?",
            "What interest do you pay?",
            "Which interest rate do you offer?",
        ),
        "The interest rate for savings is two percent a year.",
        ("two percent",),
    ),
    Exchange(
        "statement",
        "general_info",
        (
            "Where is my account statement?",
            "How do I get a statement?",
            "When do I get my statement?",
            "Where can I find my statement?",
        ),
        "You get your account statement in the app each month.",
        ("each month",),
    ),
    Exchange(
        "overdraft",
        "rate_question",
        (
            "What does an overdraft cost?",
            "How much is an overdraft?",
            "What is the overdraft rate?",
            "Do you have an overdraft?",
        ),
        "An overdraft costs nine percent a year until you pay it back.",
        ("nine percent",),
    ),
)

ENGLISH = Language(
    locale="en",
    greeting=Exchange(
        "greeting",
        "greeting",
        (
            "Hello, my name is {name}, account #{account}.",
            "Hi, I am {name}, my account #{account}.",
            "Good morning, I am {name}, account #{account}.",
            "Hello, this is {name} with account #{account}.",
        ),
        "Hello {name}, I see your account #{account}. How can I help?",
        ("{name}", "{account}"),
    ),
    topics=_TOPICS,
    questions=_QUESTIONS,
    balance=Exchange(
        "balance",
        "balance",
        (
            "What is my balance?",
            "How much money do I have?",
            "Please tell me my balance.",
            "How much is on my account?",
        ),
        "Please tell me your name and account number first.",
        ("name and account number",),
    ),
    thanks=Exchange(
        "thanks",
        "thanks",
        ("Thank you, goodbye.", "Thanks, that is all.", "Thank you very much.", "Great, thanks a lot."),
        "You are welcome. Have a nice day.",
        ("welcome",),
    ),
    summary_any=(
        "Please sum up my request.",
        "Please repeat what I asked for.",
        "Please check my request again.",
    ),
    handover=(
        Exchange(
            "contact_human",
            "contact_human",
            (
                "I want to speak to a human.",
                "Please connect me to a person.",
                "Can I talk to a real person?",
                "I would like to talk to an agent.",
            ),
            "I am connecting you to a colleague.",
            (),
        ),
        Exchange(
            "complaint",
            "complaint_escalation",
            (
                "I want to make a complaint.",
                "This is not acceptable, I will complain.",
                "I am very angry, this is a complaint.",
                "I want to complain to your manager.",
            ),
            "I am connecting you to a colleague.",
            (),
        ),
        Exchange(
            "fraud",
            "complaint_escalation",
            (
                "This is fraud, I did not pay that.",
                "I report a fraud on my account.",
                "Someone used my card, this is fraud.",
                "I think this is fraud.",
            ),
            "I am connecting you to a colleague.",
            (),
        ),
    ),
    listed=("account #{account}", "€{amount}", "my name is {name}", "to {payee}", "I live in {city}"),
    read_back=("Please note my data: ", "I have noted: ", ", ", "."),
    first_turn="This is account #{account}. ",
    names=NAMES_EN,
    cities=CITIES_EN,
    persona="{name}, a private customer who writes briefly and asks for facts given earlier",
    never=("your PIN", "password"),
    ledger={
        "name": r"(?:Hello|Dear|card is for) (\w+)",
        "account": r"account #(\d+)",
        "amount": r"€(\d+)",
        "payee": r"€\d+ to (\w+)",
        "city": r"address (?:to|is in) (\w+)",
    },
)
