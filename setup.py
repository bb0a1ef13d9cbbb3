"""The extension with the compiled core, and wheels that say whether it is in them. All else is in pyproject.toml.

SHARD_GYM_NO_CORE=1 leaves the core out, as if there were no compiler.
"""

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

# -O3 would unroll the loops over a tile before it makes vectors of them
FLAGS = "-O2 -ftree-vectorize -fvect-cost-model=dynamic -fno-math-errno -fno-trapping-math -ffp-contract=off"
CORE = Extension(
    "shard_gym.core._compiled",
    sources=["shard_gym/core/core.c"],
    extra_compile_args=[] if os.name == "nt" else FLAGS.split(),
    py_limited_api=True,
    optional=True,  # without a compiler numpy does it all
)


class Wheel(bdist_wheel):
    """A wheel for every platform, where no compiler made the core."""

    def run(self) -> None:
        build = self.get_finalized_command("build_ext")
        build.run()
        self.root_is_pure = not any(Path(file).exists() for file in build.get_outputs())
        if self.root_is_pure:
            self.distribution.ext_modules = []
        super().run()


setup(
    ext_modules=[] if os.environ.get("SHARD_GYM_NO_CORE") else [CORE],
    cmdclass={"bdist_wheel": Wheel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
