"""What Prometheus reads of a broker: `families` names it, `gathering` reads it off the state when
asked, `endpoint` answers over HTTP. Nothing is imported unless `metrics.listen` is set.
"""
