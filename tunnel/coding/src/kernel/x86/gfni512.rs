use super::masked::{BYTES, Vector, load, load_part, store, store_part, zero};
use crate::kernel::vector::define_combine;
#[cfg(target_arch = "x86")]
use std::arch::x86::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

type Factor = __m512i;

define_combine!("avx512f,avx512bw,gfni");

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn factor(coefficient: u8) -> Factor {
    _mm512_set1_epi8(coefficient.cast_signed())
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn add_product(sum: Vector, factor: Factor, vector: Vector) -> Vector {
    _mm512_xor_si512(sum, _mm512_gf2p8mul_epi8(factor, vector))
}
