"""Metrics in the format of Prometheus: lag of groups of any cluster, under the names of kafka-lag-exporter."""
