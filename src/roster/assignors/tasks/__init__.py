"""Assignment of stateful and stateless tasks to clients."""

from roster.assignors.tasks.policy import Client, ClientTasks, TaskPlan, TaskProblem, assign

__all__ = ["Client", "ClientTasks", "TaskPlan", "TaskProblem", "assign"]
