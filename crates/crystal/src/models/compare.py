#!/usr/bin/env python3
"""Compares the prices of providers.toml with those of the Python package genai-prices, and prints rows for it.

    pip install genai-prices
    compare.py                          every row whose price differs, or that the package does not know
    compare.py --row openai/gpt-6-astra the row of a model, as the package knows it
    compare.py --missing                models of the package that have no row

The package has prices and context windows. Output limits and features come from the providers' own pages; a row leaves
out what is not known.
"""

import argparse
import datetime
import pathlib
import sys
import tomllib
from decimal import Decimal

from genai_prices.data import providers
from genai_prices.types import StartDateConstraint, TieredPrices

TABLE = pathlib.Path(__file__).with_name("providers.toml")
# The name of each provider in the package.
PROVIDERS = {"anthropic": "anthropic", "openai": "openai", "gemini": "google", "openrouter": "openrouter"}
KINDS = {"input": "input_mtok", "output": "output_mtok", "cached": "cache_read_mtok", "cache_write": "cache_write_mtok"}


class Unknown(Exception):
    """The package does not know the model, or its price has a form that a row cannot have."""


def find(crystal):
    provider, _, model = crystal.partition("/")
    known = next((known for known in providers if known.id == PROVIDERS.get(provider)), None)
    if known is None:
        raise Unknown("the package has no such provider")
    exact = next((found for found in known.models if found.id == model), None)
    found = exact or next((found for found in known.models if found.is_match(model)), None)
    if found is None:
        raise Unknown("the package does not have it")
    return found


def tiers(price):
    """Returns the usual rates, and the threshold and rates of long requests if there are any."""
    usual, beyond, over = {}, {}, set()
    for kind, key in KINDS.items():
        rate = getattr(price, key, None)
        if rate is None:
            continue
        if isinstance(rate, TieredPrices):
            if len(rate.tiers) > 1:
                raise Unknown("it has more than two rates by length")
            usual[kind] = rate.base
            for tier in rate.tiers:
                beyond[kind] = tier.price
                over.add(tier.start)
        else:
            usual[kind] = rate
    if len(over) > 1:
        raise Unknown("its rates have different thresholds")
    if "input" not in usual or "output" not in usual:
        raise Unknown("it has no rates for tokens")
    long = {"over": over.pop(), **{kind: beyond.get(kind, usual[kind]) for kind in usual}} if over else None
    return usual, long


def price_at(found, day):
    """Returns the price on a day, as a row has it."""
    if not isinstance(found.prices, list):
        usual, long = tiers(found.prices)
        return {**usual, **({"long": long} if long else {})}
    dated = []
    for conditional in found.prices:
        constraint = conditional.constraint
        if constraint is None:
            dated.append((datetime.date.min, conditional.prices))
        elif isinstance(constraint, StartDateConstraint):
            dated.append((constraint.start_date, conditional.prices))
        else:
            raise Unknown("its price depends on the time of day")
    dated.sort(key=lambda one: one[0])
    begun = [price for start, price in dated if start <= day]
    usual, long = tiers(begun[-1] if begun else dated[0][1])
    price = {**usual, **({"long": long} if long else {})}
    later = next(((start, rates) for start, rates in dated if start > day), None)
    if later is not None and tiers(later[1]) != (usual, long):
        then, then_long = tiers(later[1])
        price["until"] = str(later[0] - datetime.timedelta(days=1))
        price["then"] = {**then, **({"long": then_long} if then_long else {})}
    return price


def parse(written):
    """Reads a price of the table into the form of `price_at`."""
    amount = lambda text: Decimal(text.removesuffix(" USD"))
    price = {kind: amount(written[kind]) for kind in KINDS if kind in written}
    if "long" in written:
        price["long"] = {"over": written["long"]["over"], **parse(written["long"])}
    if "until" in written:
        price |= {"until": written["until"], "then": parse(written["then"])}
    return price


def effective(price):
    """Adds the rates that a table leaves out because they are the same as the one for input."""
    filled = {**price}
    for kind in ("cached", "cache_write"):
        filled.setdefault(kind, price["input"])
    for key in ("long", "then"):
        if key in price:
            filled[key] = effective(price[key])
    return filled


def amount(rate):
    text = format(rate.normalize(), "f")
    whole, _, part = text.partition(".")
    return f"{whole}.{part.ljust(2, '0')}"


def inline(rates):
    parts = [f"over = {rates['over']:_}"] if "over" in rates else []
    parts += [f'{kind} = "{amount(rates[kind])} USD"' for kind in KINDS if kind in rates]
    if "long" in rates:
        parts.append(f"long = {inline(rates['long'])}")
    return "{ " + ", ".join(parts) + " }"


def row(crystal, found, day):
    price = price_at(found, day)
    lines = ["[[model]]", f'crystal = "{crystal}"']
    if found.context_window is not None:
        lines.append(f"window = {found.context_window:_}")
    if "long" not in price and "until" not in price:
        return "\n".join([*lines, f"price = {inline(price)}"])
    lines.append("[model.price]")
    lines += [f'{kind} = "{amount(price[kind])} USD"' for kind in KINDS if kind in price]
    if "long" in price:
        lines.append(f"long = {inline(price['long'])}")
    if "until" in price:
        lines += [f'until = "{price["until"]}"', f"then = {inline(price['then'])}"]
    return "\n".join(lines)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--row", action="append", metavar="CRYSTAL")
    arguments.add_argument("--missing", action="store_true")
    given = arguments.parse_args()
    table = tomllib.loads(TABLE.read_text())
    day = datetime.date.fromisoformat(table["as_of"])
    rows = {entry["crystal"]: entry for entry in table["model"]}
    for crystal in given.row or []:
        print(row(crystal, find(crystal), day), end="\n\n")
    if given.missing:
        for ours, theirs in PROVIDERS.items():
            known = next(known for known in providers if known.id == theirs)
            for found in known.models:
                if f"{ours}/{found.id}" not in rows and not found.deprecated:
                    print(f"{ours}/{found.id}")
    if given.row or given.missing:
        return 0
    differing = 0
    for crystal, entry in rows.items():
        if not isinstance(entry.get("price"), dict):
            continue
        try:
            theirs = effective(price_at(find(crystal), day))
        except Unknown as reason:
            print(f"{crystal}: {reason}")
            continue
        if effective(parse(entry["price"])) != theirs:
            differing += 1
            print(f"{crystal}: the package has\n{row(crystal, find(crystal), day)}\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
