"""The harness's own command line, with the model "mmctl" registered."""

from __future__ import annotations

import sys

from mmctl.errors import MmctlError


def main() -> None:
    """Run `lm_eval`; everything after the module's name is its own."""
    from mmctl.harness import register

    try:
        register()
    except MmctlError as error:
        print(f"mmctl: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
