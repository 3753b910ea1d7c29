"""SipHash from the paper (Aumasson, Bernstein 2012), for the programs that make golden vectors."""

import struct

MASK = (1 << 64) - 1


def rotate(word, bits):
    return (word << bits | word >> (64 - bits)) & MASK


def siphash(compression, finalization, key, message):
    """Returns the eight bytes of SipHash-c-d with 64 bits of output."""
    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rounds(count):
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[2] = (v[2] + v[3]) & MASK
            v[1] = rotate(v[1], 13) ^ v[0]
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[1]) & MASK
            v[0] = (v[0] + v[3]) & MASK
            v[1] = rotate(v[1], 17) ^ v[2]
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = rotate(v[2], 32)

    whole = len(message) // 8 * 8
    last = message[whole:].ljust(7, b"\0") + bytes([len(message) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", message[:whole] + last):
        v[3] ^= word
        rounds(compression)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(finalization)
    return struct.pack("<Q", v[0] ^ v[1] ^ v[2] ^ v[3])


def compare_with_published():
    key, message = bytes(range(16)), bytes(range(15))
    # Appendix A of the paper; the first lines of the authors' vectors for SipHash-2-4.
    assert siphash(2, 4, key, message).hex() == "e545be4961ca29a1"
    assert siphash(2, 4, key, b"").hex() == "310e0edd47db6f72"
    # The same for SipHash-1-3, from the tests of the Rust standard library.
    for length, tag in enumerate(["dcc40f055801acab", "93ca577df39bf4c9", "4dd4c74d029bcb82"]):
        assert siphash(1, 3, key, bytes(range(length))).hex() == tag
