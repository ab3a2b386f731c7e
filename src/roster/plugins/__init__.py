"""Roster's assignors as classes for other Python clients; each client has a module, and no other module imports it.

from roster.plugins.kafka_python import RosterCooperativeSticky
consumer = KafkaConsumer("topic", group_id="g", partition_assignment_strategy=[RosterCooperativeSticky])

from roster.plugins.aiokafka import RosterSticky
consumer = AIOKafkaConsumer("topic", group_id="g", partition_assignment_strategy=[RosterSticky])
"""
