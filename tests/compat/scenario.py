"""What a scenario is, and the list of all of them (filled by the modules in cases/)."""
import dataclasses


@dataclasses.dataclass
class Launch:
    """One launcher process. {D} is the scenario's directory, {P} and {P2} are free ports."""
    arguments: str  # by the shell's rules of quoting
    environment: dict = dataclasses.field(default_factory=dict)  # on top of a small fixed one
    stdin: str | None = None
    one_core: bool = False
    nohup: bool = False


@dataclasses.dataclass
class Scenario:
    name: str
    launches: list[Launch]
    steps: str  # "start 0; starts 2; signal 0 TERM; wait 0" (runner.py); at the end every launch is waited for
    environment: bool  # compare every variable, not only ranks, sizes and counts
    files: tuple[str, ...]  # files under {D} that are compared too
    accidental: tuple[str, ...]  # parts of the result in which torchrun's own behaviour is an accident: not compared
    limit: float  # seconds


ALL: dict[str, Scenario] = {}

# Pieces of command lines.
TWO = "--nproc-per-node=2"
LOGS = "--log-dir={D}/logs --nproc-per-node=2"
HANG = "'+await=never'"  # last action of a worker that is to be stopped
OWN_ERROR_FILE = {"TORCHELASTIC_ERROR_FILE": "{D}/le.json"}


def scenario(name, *launches, steps=None, environment=False, files=(), accidental="", limit=90, **options):
    """`launches`: Launch, or the arguments of one, to which `options` then belong."""
    assert name not in ALL, name
    launches = [item if isinstance(item, Launch) else Launch(item, **options) for item in launches]
    steps = steps or "; ".join(f"start {number}" for number in range(len(launches)))
    ALL[name] = Scenario(name, launches, steps, environment, tuple(files), tuple(accidental.split()), limit)
