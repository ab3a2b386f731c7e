"""Roster's member beside consumers of the new protocol (KIP-848, `group.protocol=consumer`) on Apache Kafka.

The broker changes the group's type when the first consumer of the new protocol joins a classic group, and back when the
last one leaves (`group.consumer.migration.policy=bidirectional`, its default).
"""

from __future__ import annotations

import pytest

from tests.real.realparts.cluster import unique
from tests.real.realparts.groups import commit_all, consumed_since, consumed_up_to, marks_of, partitions, shared_out
from tests.waiting import until

NEW = ("java", "confluent")
ASSIGNORS = ("range", "cooperative-sticky")


@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.parametrize("kind", NEW)
def test_roster_joins_a_group_of_the_new_protocol(apache_kafka, client, kind, assignor):
    topic, group = apache_kafka.create_topic(partitions=6, records=5), unique("group")
    everything = partitions(topic, 6)
    new = client(kind, apache_kafka, group, topics=[topic], protocol="consumer")
    shared_out([new], everything)
    roster = client("roster", apache_kafka, group, topics=[topic], assignors=[assignor])
    both = [new, roster]
    shared_out(both, everything)
    consumed_up_to(both, dict.fromkeys(everything, 5))
    commit_all(apache_kafka, group, both, dict.fromkeys(everything, 5))
    marks = marks_of([roster])
    new.close()
    shared_out([roster], everything)
    apache_kafka.produce(dict.fromkeys(everything, 5))
    consumed_up_to([roster], dict.fromkeys(everything, 10))
    commit_all(apache_kafka, group, [roster], dict.fromkeys(everything, 10))
    assert not [piece for piece in consumed_since([roster], marks) if piece[2] < 5]


@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.parametrize("kind", NEW)
def test_a_consumer_of_the_new_protocol_joins_rosters_group(apache_kafka, client, kind, assignor):
    topic, group = apache_kafka.create_topic(partitions=6, records=5), unique("group")
    everything = partitions(topic, 6)
    members = [client("roster", apache_kafka, group, topics=[topic], assignors=[assignor]) for _ in range(2)]
    shared_out(members, everything)
    consumed_up_to(members, dict.fromkeys(everything, 5))
    commit_all(apache_kafka, group, members, dict.fromkeys(everything, 5))
    members.append(client(kind, apache_kafka, group, topics=[topic], protocol="consumer"))
    marks = marks_of(members)
    shared_out(members, everything)
    apache_kafka.produce(dict.fromkeys(everything, 5))
    consumed_up_to(members, dict.fromkeys(everything, 10))
    commit_all(apache_kafka, group, members, dict.fromkeys(everything, 10))
    assert not [piece for piece in consumed_since(members, marks) if piece[2] < 5]
    members.pop(0).close()
    shared_out(members, everything)
    members.pop(0).close()
    shared_out(members, everything)
    members.pop().close()
    until(lambda: apache_kafka.group_state(group) == "EMPTY")
