"""What all tests share. Hypothesis: the same examples in every run; `--hypothesis-profile=fuzz` looks for new ones."""

from hypothesis import HealthCheck, settings

SLOW_IS_FINE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # the machine may be busy

settings.register_profile("fixed", max_examples=60, derandomize=True, database=None, **SLOW_IS_FINE)
settings.register_profile("fuzz", max_examples=2_500, **SLOW_IS_FINE)
settings.load_profile("fixed")
