"""The pipeline that makes a Spark application a member of a consumer group."""
