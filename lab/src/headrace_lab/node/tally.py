"""What kills of a node came to, as numbers."""

from collections import Counter
from dataclasses import dataclass, field

from headrace_lab.node.ledger import Account


@dataclass(slots=True)
class Tally:
    """What was done to the node and what was found in it."""

    landed: Counter[str] = field(default_factory=Counter)  # kills, by what the node was at
    aims: Counter[str] = field(default_factory=Counter)  # what they were meant for
    stopped_count: int = 0  # by SIGTERM
    log_count: int = 0
    audit_count: int = 0
    acknowledged_rows: int = 0
    acknowledged_appends: int = 0
    tried_batches: int = 0
    open_rows: int = 0  # in flight, summed over the kills
    reconnect_count: int = 0  # times that a source was acknowledged by another life than before
    transaction_count: int = 0
    commit_count: int = 0  # of cursors
    topic_count: int = 0  # made while nodes were killed
    compared_rows: int = 0
    unheard_count: int = 0  # batches found that were never acknowledged
    repeated_count: int = 0  # appends that one life took and only a later one acknowledged
    told: Counter[str] = field(default_factory=Counter)  # errors that producers were told
    recovered: Counter[str] = field(default_factory=Counter)  # what recoveries had to do
    wrong: Counter[str] = field(default_factory=Counter)  # rows, by what is wrong with them
    orphan_seconds: float = 0.0  # the longest that a child outlived its parent
    problems: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(self.landed.values())

    def among(self, word: str) -> int:
        """Return how many landed where `word` is part of what the node was at."""
        return sum(count for phase, count in self.landed.items() if word in phase)

    def as_json(self) -> dict[str, object]:
        return {
            "landed": dict(self.landed.most_common()),
            "aims": dict(self.aims.most_common()),
            "stopped": self.stopped_count,
            "logs": self.log_count,
            "audits": self.audit_count,
            "rows_acknowledged": self.acknowledged_rows,
            "appends_acknowledged": self.acknowledged_appends,
            "batches_tried": self.tried_batches,
            "rows_in_flight_at_kills": self.open_rows,
            "reconnects": self.reconnect_count,
            "transactions": self.transaction_count,
            "cursor_commits": self.commit_count,
            "topics_made": self.topic_count,
            "rows_compared": self.compared_rows,
            "batches_unheard": self.unheard_count,
            "appends_repeated": self.repeated_count,
            "errors_told": dict(self.told.most_common()),
            "recoveries": dict(self.recovered.most_common()),
            "lost": self.wrong["lost"],
            "invented": self.wrong["invented"],
            "twice": self.wrong["twice"],
            "orphan_seconds": round(self.orphan_seconds, 2),
            "problems": self.problems,
        }

    def note_log(self, account: Account, told: Counter[str]) -> None:
        """Count what the producers of one log did, at its end."""
        sources = account.sources.values()
        self.acknowledged_rows += account.acknowledged_rows
        self.acknowledged_appends += sum(len(one.lines) for one in sources)
        self.tried_batches += sum(one.tried for one in sources)
        self.transaction_count += account.published_count
        self.commit_count += account.commit_count
        self.told += told
