"""Registration of claims on the screen: their history, and the hash of a batch."""

from collections.abc import Mapping, Sequence

from tepo.analysis.claim_history import ClaimHistory, Stamp, minute
from tepo.analysis.claim_outcomes import run_dates
from tepo.common.errors import UserError, unknown_name
from tepo.store.facts import Facts
from tepo.studies.claims import Claims
from tepo.studies.plan import Unit


def show_history(claims: Claims, names: Sequence[str], runs: Mapping[str, Sequence[Unit]], facts: Facts) -> None:
    """Print every wording of the named claims, of all without a name, removed ones too. runs: of each that can be run.
    Raises UserError where no commit of the file is known, and for a claim that never was."""
    history = ClaimHistory.read(claims.path)
    if not history.committed:
        what = "the history of claims is that of their file in git, and no commit of it is known here"
        raise UserError(what, where=str(claims.path), fix="run this in a checkout of the repository")
    for name in names:
        if name not in history.names:
            raise unknown_name("claim", name, history.names, where=str(claims.path))
    known = {claim.name: ("known then", claim.known) for claim in claims.claims if claim.known}
    known |= {name: ("noted afterwards", notes) for name, notes in claims.known.items()}
    for name in names or history.names:
        lines = history.lines(name)
        if name in runs:
            dates = run_dates(runs[name], facts)
            ran = f"{minute(dates[0])} to {minute(dates[1])}" if dates else "none in the store (--records: on record)"
            lines.append(f"runs: {ran}")
        if name in known:
            title, notes = known[name]
            lines += [f"{title}:", *(f"    {note}" for note in notes)]
        print("\n".join([name, *(f"  {line}" for line in lines), ""]))


def show_stamp(claims: Claims, batch: int) -> None:
    """Print the hashes of a batch and what to do with them. Raises UserError for a batch without claims."""
    stamp = Stamp.of(ClaimHistory.read(claims.path).now, batch)
    if not stamp.claims:
        batches = sorted({claim.batch for claim in claims.testable})
        raise unknown_name("batch", str(batch), map(str, batches), where=str(claims.path))
    print(f"{stamp.lines}{stamp.hash}  batch {batch}, {len(stamp.claims)} claims: SHA-256 of the lines above")
    print("each line: SHA-256 of the claim as JSON, keys sorted, without blanks and without `means`")
    print(f"sign it: git tag -s claims-{batch} -m {stamp.hash}")
