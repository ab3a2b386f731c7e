"""`roster acls`: access control lists, on any Kafka with an authorizer."""

import functools
from enum import IntEnum
from typing import Any

import click

from roster.cli.admin import admin
from roster.cli.errors import UserError
from roster.cli.options import NAME, Target, cluster_options, confirm, json_option, yes_option
from roster.cli.output import print_found
from roster.model.acl import CLUSTER_NAME, AclBinding, AclFilter, AclOperation, AclPermission, PatternType, ResourceType

_COLUMNS = ("permission", "principal", "host", "operation", "resource", "pattern", "name")
_Resource = tuple[ResourceType, str, PatternType]


def _word(value: IntEnum) -> str:
    return value.name.lower().replace("_", "-")


OPERATIONS = {_word(operation): operation for operation in AclOperation if operation > AclOperation.ANY}


@click.group()
def acls() -> None:
    """List, add and remove ACLs: who may do what with topics, groups, transactional ids and the cluster."""


def _resource_options(command: Any) -> Any:
    """Add --topic, --group, --transactional-id, --cluster and --prefixed; the command gets `resource`."""

    @click.option("--topic", type=NAME, help="A topic; * for all.")
    @click.option("--group", type=NAME, help="A group; * for all.")
    @click.option("--transactional-id", type=NAME, help="A transactional id; * for all.")
    @click.option("--cluster", is_flag=True, help="The cluster.")
    @click.option("--prefixed", is_flag=True, help="All whose names begin so.")
    @functools.wraps(command)
    def with_resource(
        *arguments: object,
        topic: str | None,
        group: str | None,
        transactional_id: str | None,
        cluster: bool,
        prefixed: bool,
        **options: object,
    ) -> object:
        named = {
            ResourceType.TOPIC: topic,
            ResourceType.GROUP: group,
            ResourceType.TRANSACTIONAL_ID: transactional_id,
            ResourceType.CLUSTER: CLUSTER_NAME if cluster else None,
        }
        resources = [(kind, name) for kind, name in named.items() if name is not None]
        if len(resources) > 1:
            raise UserError(_ONE)
        if prefixed and (not resources or cluster):
            raise UserError("--prefixed: needs --topic, --group or --transactional-id")
        pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
        return command(*arguments, resource=(*resources[0], pattern) if resources else None, **options)

    return with_resource


_ONE = "give one of --topic, --group, --transactional-id and --cluster"


@acls.command(name="list", short_help="List ACLs.")
@click.option("--principal", metavar="User:NAME", type=NAME, help="Of this principal only.")
@_resource_options
@json_option
@cluster_options
def list_(principal: str | None, resource: _Resource | None, as_json: bool, target: Target) -> None:
    """List ACLs, all or a principal's or a resource's."""
    with admin(target) as cluster:
        bindings = cluster.list_acls(_filter(principal, resource))
    rows = [_row(acl) for acl in bindings]
    documents = (dict(zip(_COLUMNS, row, strict=True)) for row in rows)
    print_found(as_json, documents, _COLUMNS, rows, "no ACLs", shorten=("principal", "name"))


@acls.command(short_help="Add ACLs.")
@click.option("--allow", metavar="User:NAME", type=NAME, multiple=True, help="Whom to allow; repeatable.")
@click.option("--deny", metavar="User:NAME", type=NAME, multiple=True, help="Whom to deny; repeatable.")
@click.option("--host", type=NAME, default="*", show_default=True, help="Address from which.")
@click.option(
    "--operation",
    "operations",
    type=click.Choice(list(OPERATIONS)),
    multiple=True,
    required=True,
    help="What; repeatable.",
)
@_resource_options
@cluster_options
def add(
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    host: str,
    operations: tuple[str, ...],
    resource: _Resource | None,
    target: Target,
) -> None:
    """Allow or deny principals operations on a resource."""
    if resource is None:
        raise UserError(_ONE)
    people = [(name, AclPermission.ALLOW) for name in allow] + [(name, AclPermission.DENY) for name in deny]
    if not people:
        raise UserError("--allow: name a principal, as in --allow User:rita; or --deny")
    for name, _ in people:
        if ":" not in name:
            raise UserError(f"{name!r} is not a principal; write User:{name}")
    kind, named, pattern = resource
    wanted = [
        AclBinding(kind, named, pattern, name, host, OPERATIONS[operation], permission)
        for name, permission in people
        for operation in operations
    ]
    with admin(target) as cluster:
        cluster.create_acls(wanted)
    click.echo(f"added {len(wanted)} ACL{'s' if len(wanted) > 1 else ''}")


@acls.command(short_help="Remove ACLs.")
@click.option("--principal", metavar="User:NAME", type=NAME, help="Of this principal only.")
@_resource_options
@yes_option
@cluster_options
def remove(principal: str | None, resource: _Resource | None, yes: bool, target: Target) -> None:
    """Remove the ACLs of a principal, of a resource, or of both. Asks first."""
    if principal is None and resource is None:
        raise UserError("--principal: name it, or a resource, or both")
    with admin(target) as cluster:
        wanted = _filter(principal, resource)
        bindings = cluster.list_acls(wanted)
        if bindings:
            confirm(yes, f"Remove {len(bindings)} ACLs?")
            bindings = cluster.delete_acls(wanted)
    click.echo(f"removed {len(bindings)} ACLs")


def _filter(principal: str | None, resource: _Resource | None) -> AclFilter:
    return AclFilter(principal=principal) if resource is None else AclFilter(*resource, principal=principal)


def _row(acl: AclBinding) -> tuple[str, ...]:
    kind, pattern = _word(acl.resource_type), _word(acl.pattern_type)
    return (_word(acl.permission), acl.principal, acl.host, _word(acl.operation), kind, pattern, acl.resource_name)
