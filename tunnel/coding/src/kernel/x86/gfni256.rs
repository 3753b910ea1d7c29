use super::avx2::{BYTES, Vector, load, store, zero};
use crate::kernel::vector::{define_combine, define_parts};
#[cfg(target_arch = "x86")]
use std::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

type Factor = __m256i;

define_combine!("avx2,gfni");
define_parts!("avx2,gfni");

#[inline]
#[target_feature(enable = "avx2,gfni")]
fn factor(coefficient: u8) -> Factor {
    _mm256_set1_epi8(coefficient.cast_signed())
}

#[inline]
#[target_feature(enable = "avx2,gfni")]
fn add_product(sum: Vector, factor: Factor, vector: Vector) -> Vector {
    _mm256_xor_si256(sum, _mm256_gf2p8mul_epi8(factor, vector))
}
