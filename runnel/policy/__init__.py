"""Trained policies as objects that act outside of a run."""

from runnel.policy.policy import Policies, Policy

__all__ = ["Policies", "Policy"]
