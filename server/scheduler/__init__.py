"""Who synthesises next, and who may come in. Pure decisions: `server.cluster` runs the steps, `server.gateway` answers.

`scheduler.py` picks the streams of the next engine step, `fairness.py` shares the engine between principals,
`costs.py` learns what steps cost. Admission builds on the same costs.
"""

from server.scheduler.costs import StepCosts
from server.scheduler.fairness import Shares
from server.scheduler.scheduler import Outcome, Plan, Scheduler
from server.scheduler.ticket import StepReport, Ticket, Urgency

__all__ = ["Outcome", "Plan", "Scheduler", "Shares", "StepCosts", "StepReport", "Ticket", "Urgency"]
