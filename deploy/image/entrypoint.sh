#!/bin/sh
# Spark on Kubernetes starts a driver with the word `driver`, options of spark-submit, the program and its own words.
# All else is a command.
if [ "$1" = driver ]; then
    shift
    options="--deploy-mode client --conf spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS"
    while [ "${1#--}" != "$1" ]; do
        options="$options $1 $2"
        shift 2
    done
    # Python starts the JVM: under spark-submit the JVM would hear SIGTERM, and end before the batch has.
    export PYSPARK_SUBMIT_ARGS="$options pyspark-shell"
    program=${1#local://}
    shift
    set -- python "$program" "$@"
fi
# tini collects what Spark's JVM and workers leave behind, and passes signals on.
exec tini -- "$@"
