from dataclasses import dataclass

import pytest

from tepo.sampling.engine_ranks import EngineOfRank


@dataclass
class Ranks:
    rank: int
    world_size: int = 8


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_neighbours_hold_an_engine_and_one_of_them_speaks_for_it(size: int) -> None:
    held = [EngineOfRank.of(Ranks(rank), size) for rank in range(8)]
    assert [engine.index for engine in held] == [rank // size for rank in range(8)]
    assert sum(engine.leads for engine in held) == held[0].count == 8 // size
    assert {engine.index for engine in held if engine.leads} == set(range(8 // size))
    shares = [number for engine in held if engine.leads for number in engine.share(range(20))]
    assert sorted(shares) == list(range(20))
    assert EngineOfRank.of(None, 1) == EngineOfRank(0, 1, leads=True)  # a single process
