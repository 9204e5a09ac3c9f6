"""The k best keys of a row of scores that a program holds, as a tuple of tiles (M, N) side by side."""

import triton
import triton.language as tl

from .tiles import IMAGE_OF_INFINITY, IMAGE_OF_MINUS_INFINITY, INTERPRETED, LEAST, MAGNITUDE

#: Up to this many keys, taking the best remaining one is cheaper than a search for the threshold.
REMOVALS_UP_TO = tl.constexpr(16)
#: Steps of that search, which usually needs seven for a block; and scores that it may leave to be taken one by one.
LONGEST_SEARCH = tl.constexpr(24)
REMOVED = tl.constexpr(2)


@triton.jit
def largest_below(scores, limit, TILES: tl.constexpr):
    """(M,): the largest score of each row that is smaller than ``limit``; -inf if there is none."""
    best = tl.where(scores[0] < limit[:, None], scores[0], -float("inf"))
    for i in tl.static_range(1, TILES):
        best = tl.maximum(best, tl.where(scores[i] < limit[:, None], scores[i], -float("inf")))
    return tl.max(best, 1)


@triton.jit
def rough_log(x):
    """Grows nearly like the logarithm of a positive number: its exponent and, between two of them, its fraction."""
    return x.to(tl.int32, bitcast=True).to(tl.float32)


@triton.jit
def one_from(scores, limit):
    """1.0 where a score is at least its row's ``limit`` (M,), else 0.0: one instruction, where a select takes two."""
    if INTERPRETED:
        return (scores >= limit[:, None]).to(tl.float32)
    return tl.inline_asm_elementwise(
        "set.ge.f32.f32 $0, $1, $2;", "=f,f,f", [scores, limit[:, None]], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def count_from(scores, limit, TILES: tl.constexpr):
    """(M,): how many scores of each row are at least ``limit``."""
    count = one_from(scores[0], limit)
    for i in tl.static_range(1, TILES):
        count += one_from(scores[i], limit)
    return tl.sum(count, 1).to(tl.int32)


@triton.jit
def count_ties(scores, limit, last, TILES: tl.constexpr, BLOCK_N: tl.constexpr):
    """(M,): how many scores of each row equal ``limit``, up to the column ``last``."""
    columns = tl.arange(0, BLOCK_N)[None, :]
    count = ((scores[0] == limit[:, None]) & (columns <= last[:, None])).to(tl.int32)
    for i in tl.static_range(1, TILES):
        count += ((scores[i] == limit[:, None]) & (columns + i * BLOCK_N <= last[:, None])).to(tl.int32)
    return tl.sum(count, 1)


@triton.jit
def bisect_score(scores, k, TILES: tl.constexpr, BLOCK_M: tl.constexpr):
    """(M,): the k-th largest score of each row, ties counted; the least finite number if the row has fewer."""
    low = tl.full((BLOCK_M,), IMAGE_OF_MINUS_INFINITY, tl.int32)
    high = tl.full((BLOCK_M,), IMAGE_OF_INFINITY, tl.int32)
    for _ in range(32):
        middle = (low & high) + ((low ^ high) >> 1)  # their mean, without overflow
        limit = (middle ^ ((middle >> 31) & MAGNITUDE)).to(tl.float32, bitcast=True)
        enough = count_from(scores, limit, TILES) >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return tl.maximum((low ^ ((low >> 31) & MAGNITUDE)).to(tl.float32, bitcast=True), LEAST)


@triton.jit
def search_score(scores, best, k, TILES: tl.constexpr, BLOCK_M: tl.constexpr):
    """(M,): a threshold from which on each row has its k best scores, or all if it has fewer; and if all were found.

    Interpolates the logarithm of the number of scores above a threshold, which is nearly linear in the threshold for
    most distributions, between one that is too low and one that is too high, until at most REMOVED are missing. They
    are taken one by one. Many equal scores can hide the threshold.
    """
    top = scores[0]  # of each column slot
    for i in tl.static_range(1, TILES):
        top = tl.maximum(top, scores[i])
    some = top > -float("inf")
    x = tl.sum(tl.where(some, top, 0.0), 1) / tl.maximum(tl.sum(some.to(tl.int32), 1), 1)
    limit = tl.full((BLOCK_M,), LEAST, tl.float32)
    found = count_from(scores, limit, TILES) <= k
    reached = tl.where(found, k, 0)  # scores from the limit on
    low, high, width = x, best, tl.maximum(best - x, 1e-3 * tl.abs(best))
    wanted = rough_log(tl.full((BLOCK_M,), k - 0.5 * REMOVED, tl.float32))
    log_low, log_high = tl.full((BLOCK_M,), 0.0, tl.float32), rough_log(tl.full((BLOCK_M,), 0.5, tl.float32))
    step = 0
    missing = tl.max((~found).to(tl.int32), 0)
    while (step < LONGEST_SEARCH) & (missing > 0):
        above = count_from(scores, x, TILES)
        hit = (above <= k) & (above >= k - REMOVED) & ~found
        limit = tl.where(hit, x, limit)
        reached = tl.where(hit, above, reached)
        found = found | hit
        many = above > k
        log_above = rough_log(tl.maximum(above.to(tl.float32), 0.5))
        low = tl.where(many, x, low)
        log_low = tl.where(many, log_above, log_low)
        high = tl.where(many, high, x)
        log_high = tl.where(many, log_high, log_above)
        bounded = log_low > 0.0  # one that is too low is known
        share = (log_low - wanted) / (log_low - log_high)
        share = tl.where(step % 3 == 2, 0.5, tl.minimum(tl.maximum(share, 0.02), 0.98))
        width = tl.where(bounded, width, 2.0 * width)
        x = tl.where(bounded, low + (high - low) * share, high - width)
        missing = tl.max((~found).to(tl.int32), 0)
        step += 1
    for _ in tl.static_range(REMOVED):
        limit = tl.where(reached < k, tl.maximum(largest_below(scores, limit, TILES), LEAST), limit)
        reached += 1
    return limit, missing == 0


@triton.jit
def bisect_column(scores, limit, room, TILES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(M,): the first column up to which each row holds ``room`` scores equal to ``limit``."""
    low = tl.full((BLOCK_M,), -1, tl.int32)
    high = tl.full((BLOCK_M,), TILES * BLOCK_N - 1, tl.int32)
    for _ in range(11):  # rows have at most 1,024 columns
        middle = (low + high) >> 1
        enough = count_ties(scores, limit, middle, TILES, BLOCK_N) >= room
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high


@triton.jit
def choose(scores, best, k, TILES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The k best keys: those above the first result, and those equal to it up to the column of the second.

    ``best`` (M,) is each row's largest score. Invisible keys have score -inf and are never chosen.
    """
    limit = best
    if k <= REMOVALS_UP_TO:
        for _ in range(1, k):
            limit = largest_below(scores, limit, TILES)  # the k-th largest different score
        limit = tl.maximum(limit, LEAST)
    else:
        limit, found = search_score(scores, best, k, TILES, BLOCK_M)
        if not found:
            limit = bisect_score(scores, k, TILES, BLOCK_M)
    last = tl.full((BLOCK_M,), TILES * BLOCK_N, tl.int32)
    surplus = count_from(scores, limit, TILES) - k
    if tl.max(surplus, 0) > 0:  # somewhere two scores are equal
        if k <= REMOVALS_UP_TO:
            limit = bisect_score(scores, k, TILES, BLOCK_M)
            surplus = count_from(scores, limit, TILES) - k
        ties = count_ties(scores, limit, last, TILES, BLOCK_N)
        cut = bisect_column(scores, limit, ties - surplus, TILES, BLOCK_M, BLOCK_N)
        last = tl.where(surplus > 0, cut, last)
    return limit, last
