//! Symbols at close to their entropy, also where it is far below a bit: range asymmetric numeral
//! systems (J. Duda, "Asymmetric numeral systems", arXiv:1311.2540, section 4) with several
//! alternating models, each made for the data at hand and sent in front of it.

use crate::bits::{BitReader, BitWriter};
use crate::huffman::InvalidCode;

/// Binary logarithm of the sum of the shares of all symbols of a model.
const SCALE_BITS: u32 = 12;
const SCALE: u32 = 1 << SCALE_BITS;
/// The least state; states are below 2^32, words of 16 bits.
const LEAST: u32 = 1 << 16;
/// Bits of the number of symbols of a model, and of the number of bits of a share.
const COUNT_BITS: u32 = 6;
const LENGTH_BITS: u32 = 4;

/// The shares of `N` symbols.
#[derive(Debug, Clone)]
pub(crate) struct Model<const N: usize> {
    shares: [u16; N],
    starts: [u16; N],
}

impl<const N: usize> Model<N> {
    /// Returns the model of symbols that occur `counts` times.
    pub(crate) fn new(counts: &[u32; N]) -> Self {
        const { assert!(N < 1 << COUNT_BITS) };
        Model::of_shares(shares(counts))
    }

    fn of_shares(shares: [u16; N]) -> Self {
        let mut next = 0;
        let starts = shares.map(|share| {
            next += share;
            next - share
        });
        Model { shares, starts }
    }

    /// Writes the shares.
    pub(crate) fn describe(&self, to: &mut BitWriter) {
        let last = self.shares.iter().rposition(|share| *share > 0);
        let used = last.map_or(0, |last| last + 1);
        to.put(used as u64, COUNT_BITS);
        for share in &self.shares[..used] {
            let bits = u16::BITS - share.leading_zeros();
            to.put(bits.into(), LENGTH_BITS);
            to.put((*share).into(), bits);
        }
    }

    /// Reads the shares: all 0, or with the right sum.
    pub(crate) fn read(from: &mut BitReader<'_>) -> Result<Self, InvalidCode> {
        let mut shares = [0; N];
        let used = from.take(COUNT_BITS) as usize;
        let mut sum = 0;
        for share in shares.get_mut(..used).ok_or(InvalidCode)? {
            let bits = from.take(LENGTH_BITS) as u32;
            *share = from.take(bits) as u16;
            sum += u32::from(*share);
        }
        if sum != 0 && sum != SCALE {
            return Err(InvalidCode);
        }
        Ok(Model::of_shares(shares))
    }
}

/// Scales counts to shares. A symbol that occurs has a share.
fn shares<const N: usize>(counts: &[u32; N]) -> [u16; N] {
    let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    if total == 0 {
        return [0; N];
    }
    let share = |count: u32| match count {
        0 => 0,
        _ => (u64::from(count) * u64::from(SCALE) / total).max(1) as u16,
    };
    let mut shares = counts.map(share);
    let largest = |shares: &[u16; N]| (0..N).max_by_key(|symbol| shares[*symbol]).unwrap_or(0);
    let sum = |shares: &[u16; N]| shares.iter().map(|share| u32::from(*share)).sum::<u32>();
    // The largest share bears the rounding least; there are far fewer symbols than parts of it.
    while sum(&shares) > SCALE {
        shares[largest(&shares)] -= 1;
    }
    shares[largest(&shares)] += (SCALE - sum(&shares)) as u16;
    shares
}

/// Encodes symbols, each with the model of its number.
pub(crate) fn encode<const N: usize>(
    models: &[Model<N>],
    symbols: impl DoubleEndedIterator<Item = (u8, u8)>,
) -> Vec<u8> {
    let mut words = Vec::new();
    let mut state = LEAST;
    // The decoder finds the symbols in the opposite order.
    for (model, symbol) in symbols.rev() {
        let model = &models[usize::from(model)];
        let share = u32::from(model.shares[usize::from(symbol)]);
        let start = u32::from(model.starts[usize::from(symbol)]);
        if u64::from(state) >= u64::from(share) << (32 - SCALE_BITS) {
            words.push(state as u16);
            state >>= 16;
        }
        state = (state / share) << SCALE_BITS | (state % share + start);
    }
    words.extend([state as u16, (state >> 16) as u16]);
    words
        .iter()
        .rev()
        .flat_map(|word| word.to_be_bytes())
        .collect()
}

/// Decodes symbols with the models that they were encoded with.
pub(crate) struct Decoder<'a, const N: usize> {
    models: &'a [Model<N>],
    /// The symbol of each place of each model.
    symbols: Vec<[u8; SCALE as usize]>,
    state: u32,
    words: std::slice::Iter<'a, [u8; 2]>,
    is_overrun: bool,
}

impl<'a, const N: usize> Decoder<'a, N> {
    pub(crate) fn new(models: &'a [Model<N>], bytes: &'a [u8]) -> Self {
        let symbols = models.iter().map(|model| {
            let mut symbols = [0; SCALE as usize];
            let ranges = model.starts.iter().zip(model.shares);
            for (symbol, (start, share)) in ranges.enumerate() {
                let start = usize::from(*start);
                symbols[start..start + usize::from(share)].fill(symbol as u8);
            }
            symbols
        });
        let mut decoder = Decoder {
            models,
            symbols: symbols.collect(),
            state: 0,
            words: bytes.as_chunks().0.iter(),
            is_overrun: false,
        };
        decoder.state = decoder.word() << 16;
        decoder.state |= decoder.word();
        decoder
    }

    #[inline]
    fn word(&mut self) -> u32 {
        match self.words.next() {
            Some(word) => u16::from_be_bytes(*word).into(),
            None => {
                self.is_overrun = true;
                0
            }
        }
    }

    /// Returns the next symbol of a model; 0 if the model has none.
    #[inline]
    pub(crate) fn take(&mut self, model: usize) -> usize {
        let place = self.state % SCALE;
        let symbol = usize::from(self.symbols[model][place as usize]);
        let Model { shares, starts } = &self.models[model];
        // A state that no encoder leaves is below 2^32 as well.
        self.state = u32::from(shares[symbol])
            .wrapping_mul(self.state >> SCALE_BITS)
            .wrapping_add(place.wrapping_sub(starts[symbol].into()));
        if self.state < LEAST {
            self.state = self.state << 16 | self.word();
        }
        symbol
    }

    /// Returns whether the symbols were all there, and nothing else.
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_overrun && self.words.len() == 0 && self.state == LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MODELS: usize = 3;

    fn round_trip(symbols: &[(u8, u8)]) -> usize {
        let mut counts = [[0; 40]; MODELS];
        for (model, symbol) in symbols {
            counts[usize::from(*model)][usize::from(*symbol)] += 1;
        }
        let models = counts.map(|counts| Model::new(&counts));
        let mut writer = BitWriter::default();
        models.iter().for_each(|model| model.describe(&mut writer));
        let described = writer.finish();
        let bytes = encode(&models, symbols.iter().copied());

        let mut reader = BitReader::new(&described);
        let models = [(); MODELS].map(|()| Model::<40>::read(&mut reader).expect("a model"));
        let mut decoder = Decoder::new(&models, &bytes);
        for (model, symbol) in symbols {
            assert_eq!(decoder.take(usize::from(*model)), usize::from(*symbol));
        }
        assert!(decoder.is_whole());
        bytes.len()
    }

    #[test]
    fn rare_symbols_cost_their_entropy() {
        // One of 20 differs: 0.286 bits each.
        let symbols: Vec<_> = (0..20_000).map(|at| (0, u8::from(at % 20 == 0))).collect();
        let bits = 8.0 * round_trip(&symbols) as f64 / symbols.len() as f64;
        assert!(bits < 0.29, "{bits} bits a symbol");
        assert_eq!(round_trip(&[(2, 7); 1000]), 4);
    }

    proptest! {
        #[test]
        fn symbols_are_read_as_they_were_written(symbols in prop::collection::vec((0u8..MODELS as u8, 0u8..40), 0..3000)) {
            round_trip(&symbols);
        }

        #[test]
        fn any_bytes_are_refused_or_symbols(description in prop::collection::vec(any::<u8>(), 0..60), bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(model) = Model::<40>::read(&mut BitReader::new(&description)) {
                let models = [model];
                let mut decoder = Decoder::new(&models, &bytes);
                for _ in 0..200 {
                    prop_assert!(decoder.take(0) < 40);
                }
            }
        }
    }
}
