"""The text of the model card; `$names` are figures that are measured."""

CARD = """\
# Umbra's default model

A network of the DeepSeek V4 kind with $parameters million parameters ($megabytes MB), trained
from nothing by Umbra's own code on data that Umbra's own code makes. It has six layers, one of
each kind there is; 4 heads of 448 + 64 channels and 8 indexer heads of 128; 8 experts, two of which
and a shared one compute each token; weights in fp8; 2,048 token ids; a context of 32,768 tokens,
trained up to 16,384.

## What it can do

It holds short conversations in plain English: remembers what was stated and corrected, finds it
behind thousands of tokens of other text, looks keys up in lists, copies, counts, adds small
numbers, answers as JSON, calls tools, sorts texts by topic, and stops when it is done. It thinks
first where it is asked to.

| task | accuracy |
|---|---|
| facts within 2k tokens | $facts_2k |
| facts at 8k tokens | $facts_8k |
| facts at 16k tokens | $facts_16k |
| tool calls valid and right | $tool_calls |
| JSON valid and right | $json |
| stops by itself | $stops |

Measured by `python -m tests.evaluate`, on dialogues from seeds that training never uses.

## How it was trained

$tokens tokens in $minutes minutes on $device, by `python -m tests.train`: dialogues of 512
tokens first, of 16,384 at the end; dense attention over all blocks first, the indexer's choice
later, all of it rounded to the stored formats at the end. The data is made from a seed, of closed
lists of words and a few hundred patterns of sentences; no text of anybody else is in it.

## What it cannot do

It knows nothing about the world, and understands no text that is unlike its training data. What it
says of people, places or anything else means nothing beyond what the conversation stated. Asked
how often a word occurs, or who is first in a long list of votes, it is wrong now and then. It is
made to show and to test a server, and is of no other use.
"""
