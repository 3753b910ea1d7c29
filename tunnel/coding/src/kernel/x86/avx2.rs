use crate::field::PRODUCTS;
use crate::kernel::vector::{define_combine, define_parts};
#[cfg(target_arch = "x86")]
use std::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

pub(super) const BYTES: usize = 32;

pub(super) type Vector = __m256i;

#[derive(Clone, Copy)]
struct Factor {
    low: __m256i,
    high: __m256i,
}

define_combine!("avx2");
define_parts!("avx2");

#[inline]
#[target_feature(enable = "avx2")]
fn factor(coefficient: u8) -> Factor {
    let products = &PRODUCTS[usize::from(coefficient)];
    Factor {
        low: twice(&products.low),
        high: twice(&products.high),
    }
}

/// Copies a table into both halves of a vector, because each half is shuffled separately.
#[inline]
#[target_feature(enable = "avx2")]
fn twice(table: &[u8; 16]) -> __m256i {
    // SAFETY: the array has the length of the loaded vector, and the load requires no alignment.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx2")]
fn add_product(sum: Vector, factor: Factor, vector: Vector) -> Vector {
    let mask = _mm256_set1_epi8(0x0f);
    let low = _mm256_shuffle_epi8(factor.low, _mm256_and_si256(vector, mask));
    let high = _mm256_shuffle_epi8(
        factor.high,
        _mm256_and_si256(_mm256_srli_epi16::<4>(vector), mask),
    );
    _mm256_xor_si256(sum, _mm256_xor_si256(low, high))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn zero() -> Vector {
    _mm256_setzero_si256()
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(bytes: &[u8; BYTES]) -> Vector {
    // SAFETY: the array has the length of the vector, and the load requires no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store(bytes: &mut [u8; BYTES], vector: Vector) {
    // SAFETY: the array has the length of the vector, and the store requires no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}
