"""Assignment of stateful and stateless tasks to clients."""

from roster.assignors.tasks.policy import WHOLE_LOG, Client, ClientTasks, TaskPlan, TaskProblem, assign

__all__ = ["WHOLE_LOG", "Client", "ClientTasks", "TaskPlan", "TaskProblem", "assign"]
