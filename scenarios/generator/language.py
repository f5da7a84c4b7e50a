"""What a conversation in one language is made of."""

from dataclasses import dataclass
from random import Random

from scenarios.generator.randomness import is_held_out
from scenarios.generator.vocabulary import ACCOUNTS, AMOUNTS

Facts = dict[str, str]


@dataclass(frozen=True)
class Exchange:
    """One user turn in several wordings and the one right reply; both are templates over the facts.

    Attributes:
        name: key of the exchange within its language.
        intent: what the user wants, as the intent recogniser labels it.
        users: paraphrases.
        reply: what the agent says.
        evidence: words of the reply that show the question was understood.
    """

    name: str
    intent: str
    users: tuple[str, ...]
    reply: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Topic:
    """A customer's business: how it opens, and how the agent sums it up turns later.

    Attributes:
        opening: the request itself.
        summary: the question that asks for facts given turns ago; its reply holds them.
        recalls: facts that the summary must hold.
    """

    opening: Exchange
    summary: Exchange
    recalls: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the topic: that of its opening."""
        return self.opening.name


@dataclass(frozen=True)
class Language:
    """Everything that is said in one language.

    Attributes:
        locale: en or zh.
        greeting: first turn; states name and account.
        topics: the businesses.
        questions: short questions with a fixed answer, asked in between.
        balance: a question that the agent may not answer before it knows who asks.
        thanks: the closing turn.
        summary_any: wordings of the summary question that fit each topic; what they mean hangs on the context.
        handover: requests that must reach a person, with the reply of the flow.
        first_turn: template that puts the account before a question asked in the very first turn.
        listed: facts as a customer lists them.
        read_back: a drill in copying: what the user's list and the reply's begin with, separator and full stop.
        names, cities: words for the facts.
        persona: who the simulated customer is; a template.
        never: what the agent must never say.
        ledger: for each fact, a regular expression whose one group is the value that a reply states of it.
    """

    locale: str
    greeting: Exchange
    topics: tuple[Topic, ...]
    questions: tuple[Exchange, ...]
    balance: Exchange
    thanks: Exchange
    summary_any: tuple[str, ...]
    handover: tuple[Exchange, ...]
    first_turn: str
    listed: tuple[str, ...]
    read_back: tuple[str, str, str, str]
    names: tuple[str, ...]
    cities: tuple[str, ...]
    persona: str
    never: tuple[str, ...]
    ledger: dict[str, str]

    def facts(self, random: Random, *, held_out: bool) -> Facts:
        """Facts of one customer; a pair of name and account belongs to training or to the evaluation."""
        while True:
            name, payee = random.sample(self.names, 2)
            account = random.choice(ACCOUNTS)
            if is_held_out("holder", name, account) == held_out:
                break
        amount, city = random.choice(AMOUNTS), random.choice(self.cities)
        return {"name": name, "payee": payee, "account": account, "amount": amount, "city": city}
