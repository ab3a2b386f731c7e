"""Settings of topics and brokers: described and changed."""

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, boolean, int8, int16, int32, string
from roster.wire.codec.table import Message, Struct


class DescribeConfigsRequest(Message, key=ApiKey.DESCRIBE_CONFIGS, versions="1-4", flexible="4+"):
    """Ask for settings."""

    class Resource(Struct):
        """The resource asked about: type 2 is a topic, 4 a broker; `configuration_keys` None asks for all."""

        resource_type: int = int8()
        resource_name: str = string()
        configuration_keys: list[str] | None = array(string(), nullable="0+", default=None)

    resources: list[Resource] = array(Resource)
    include_synonyms: bool = boolean()
    include_documentation: bool = boolean("3+")


class DescribeConfigsResponse(Message, key=ApiKey.DESCRIBE_CONFIGS, versions="1-4", flexible="4+"):
    """One result per resource."""

    class Result(Struct):
        class Config(Struct):
            """One setting; source 1 topic, 4 static broker, 5 default; type 1 boolean, 2 string, 3 int, 5 long, 7
            list.
            """

            class Synonym(Struct):
                """Another place the value could come from."""

                name: str = string()
                value: str | None = string(nullable="0+", default=None)
                source: int = int8()

            name: str = string()
            value: str | None = string(nullable="0+", default=None)
            read_only: bool = boolean()
            config_source: int = int8(default=-1, ignorable=True)
            is_sensitive: bool = boolean()
            synonyms: list[Synonym] = array(Synonym, ignorable=True)
            config_type: int = int8("3+", ignorable=True)
            documentation: str | None = string("3+", nullable="0+", default=None, ignorable=True)

        error_code: int = int16()
        error_message: str | None = string(nullable="0+", default=None)
        resource_type: int = int8()
        resource_name: str = string()
        configs: list[Config] = array(Config)

    Config = Result.Config
    Synonym = Result.Config.Synonym

    throttle_time_ms: int = int32()
    results: list[Result] = array(Result)


class AlterConfigsRequest(Message, key=ApiKey.ALTER_CONFIGS, versions="0-2", flexible="2+"):
    """Replace all settings of resources."""

    class Resource(Struct):
        class Config(Struct):
            name: str = string()
            value: str | None = string(nullable="0+", default=None)

        resource_type: int = int8()
        resource_name: str = string()
        configs: list[Config] = array(Config)

    Config = Resource.Config

    resources: list[Resource] = array(Resource)
    validate_only: bool = boolean()


class AlterConfigsResponse(Message, key=ApiKey.ALTER_CONFIGS, versions="0-2", flexible="2+"):
    """One result per resource."""

    class Resource(Struct):
        error_code: int = int16()
        error_message: str | None = string(nullable="0+", default=None)
        resource_type: int = int8()
        resource_name: str = string()

    throttle_time_ms: int = int32()
    responses: list[Resource] = array(Resource)


class IncrementalAlterConfigsRequest(Message, key=ApiKey.INCREMENTAL_ALTER_CONFIGS, versions="0-1", flexible="1+"):
    """Change settings one by one (KIP-339)."""

    class Resource(Struct):
        """The resource whose settings are returned."""

        class Config(Struct):
            """Operation 0 sets, 1 deletes, 2 appends, 3 subtracts."""

            name: str = string()
            config_operation: int = int8()
            value: str | None = string(nullable="0+", default=None)

        resource_type: int = int8()
        resource_name: str = string()
        configs: list[Config] = array(Config)

    resources: list[Resource] = array(Resource)
    validate_only: bool = boolean()


class IncrementalAlterConfigsResponse(Message, key=ApiKey.INCREMENTAL_ALTER_CONFIGS, versions="0-1", flexible="1+"):
    """One result per resource."""

    Resource = AlterConfigsResponse.Resource

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResponse.Resource] = array(AlterConfigsResponse.Resource)
