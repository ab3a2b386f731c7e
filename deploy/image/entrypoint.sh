#!/bin/sh
# Spark on Kubernetes starts a driver with the word `driver` and what spark-submit takes. All else is a command.
if [ "$1" = driver ]; then
    shift
    set -- spark-submit --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
fi
# tini collects what Spark's JVM and workers leave behind, and passes signals on.
exec tini -- "$@"
