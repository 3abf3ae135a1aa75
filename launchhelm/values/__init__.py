"""What a metric accepts, and how it is written down.

`JSONValue` and `JSONObject` are the types that scripts import from here.
"""

from launchhelm.records import JSONObject, JSONValue, MetricValue
from launchhelm.values.coerce import Lazy, coerce, kind_of
from launchhelm.values.coordinates import axes_text, check_axis, check_step, coordinate
from launchhelm.values.names import name_problem, require_name
from launchhelm.values.scalar import scalar, tagged

__all__ = [
    "JSONObject",
    "JSONValue",
    "Lazy",
    "MetricValue",
    "axes_text",
    "check_axis",
    "check_step",
    "coerce",
    "coordinate",
    "kind_of",
    "name_problem",
    "require_name",
    "scalar",
    "tagged",
]
