"""When a policy may stop or move a running job: the rule, and what it computes for many jobs at once.

Start at `rule.PreemptionRule`.
"""

from plait.core.preemption.rule import DEFAULT_RULE, FREELY, RULES, KeptJobs, PreemptionRule, rule_named

__all__ = ["DEFAULT_RULE", "FREELY", "RULES", "KeptJobs", "PreemptionRule", "rule_named"]
