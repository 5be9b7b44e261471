"""The strict reader of everything a person writes: objectives, studies, benchmarks, training sets, configurations.

What may be written is a typed dataclass. A field made with `option` says what it means and which numbers it takes.
`document.load` parses a YAML file, `read` makes the dataclass.
A mistake is a UserError that names file and line (or the override), the dotted key and the nearest valid name.
"""

from tepo.common.schema.reader import REQUIRED, Exclusive, Keys, Location, derived, option, read

__all__ = ["REQUIRED", "Exclusive", "Keys", "Location", "derived", "option", "read"]
