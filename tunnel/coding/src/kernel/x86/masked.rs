//! AVX-512 vectors, with masked loads and stores of a part.

#[cfg(target_arch = "x86")]
use std::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

pub(super) const BYTES: usize = 64;

pub(super) type Vector = __m512i;

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn zero() -> Vector {
    _mm512_setzero_si512()
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn load(bytes: &[u8; BYTES]) -> Vector {
    // SAFETY: the array has the length of the vector, and the load requires no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn store(bytes: &mut [u8; BYTES], vector: Vector) {
    // SAFETY: the array has the length of the vector, and the store requires no alignment.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn load_part(bytes: &[u8]) -> Vector {
    // SAFETY: bytes that the mask excludes are not read, and the load requires no alignment.
    unsafe { _mm512_maskz_loadu_epi8(first(bytes.len()), bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn store_part(bytes: &mut [u8], vector: Vector) {
    // SAFETY: bytes that the mask excludes are not written, and the store requires no alignment.
    unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), first(bytes.len()), vector) }
}

/// Returns the mask of the first `count` bytes of a vector.
#[inline]
fn first(count: usize) -> __mmask64 {
    debug_assert!(count < BYTES);
    (1 << count) - 1
}
