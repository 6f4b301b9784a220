"""What all tests share. Hypothesis: the same examples in every run; `--hypothesis-profile=fuzz` looks for new ones."""

from hypothesis import HealthCheck, settings

SLOW_IS_FINE = [HealthCheck.too_slow]

settings.register_profile("fixed", max_examples=60, deadline=None, derandomize=True, database=None)
settings.register_profile("fuzz", max_examples=20_000, deadline=None, suppress_health_check=SLOW_IS_FINE)
settings.load_profile("fixed")
