use crate::field::{inverse, multiply};
use crate::kernel::{dot, dot_add, mul_add};
use crate::{MAX_RANGE, coefficients};

/// The most packets from the first to the last of an equation. Ranges that overlap make equations longer than each.
pub(crate) const MAX_SPAN: usize = 4 * MAX_RANGE;

/// A sum of unknown packets, each times its coefficient, and the symbol that this is.
///
/// Its packets and its symbol are brought up to date one after the other: [`Equation::substitute`] and
/// [`Equation::eliminate`] say what [`Equation::add`] has to add to the symbol, so that one sum does for many.
#[derive(Debug)]
pub(crate) struct Equation {
    /// The first packet. Between additions its coefficient is not zero, and neither is that of the last.
    pub(crate) first: u64,
    pub(crate) coefficients: Vec<u8>,
    pub(crate) symbol: Vec<u8>,
}

/// An equation would be longer than [`MAX_SPAN`].
#[derive(Debug)]
pub(crate) struct TooLong;

impl Equation {
    /// What a coded packet says.
    pub(crate) fn coded(first: u64, count: usize, seed: u64, symbol: Vec<u8>) -> Self {
        Equation {
            first,
            coefficients: coefficients(seed, count).collect(),
            symbol,
        }
    }

    /// Takes packet `id` out, and returns how many times its symbol has to be added.
    pub(crate) fn substitute(&mut self, id: u64) -> u8 {
        self.place(id)
            .map_or(0, |place| std::mem::take(&mut self.coefficients[place]))
    }

    /// Takes the first packet of `other` out, which may bring in its other packets, and returns how many times the symbol of
    /// `other` has to be added.
    pub(crate) fn eliminate(&mut self, other: &Equation) -> Result<u8, TooLong> {
        let Some(place) = self.place(other.first) else {
            return Ok(0);
        };
        let end = place + other.coefficients.len();
        if end > MAX_SPAN {
            return Err(TooLong);
        }
        if end > self.coefficients.len() {
            self.coefficients.resize(end, 0);
        }
        let factor = multiply(self.coefficients[place], inverse(other.coefficients[0]));
        mul_add(
            &mut self.coefficients[place..end],
            factor,
            &other.coefficients,
        );
        Ok(factor)
    }

    /// Adds to the symbol each of `symbols` times its factor.
    pub(crate) fn add(&mut self, factors: &[u8], symbols: &[&[u8]]) {
        let longest = symbols.iter().map(|symbol| symbol.len()).max().unwrap_or(0);
        if longest > self.symbol.len() {
            self.symbol.resize(longest, 0);
        }
        dot_add(&mut self.symbol, factors, symbols);
        self.trim();
    }

    /// Whether it says what one packet is.
    pub(crate) fn is_solved(&self) -> bool {
        self.coefficients.len() == 1
    }

    /// Sets `symbol`, which is empty, to that of the first packet, the only one.
    pub(crate) fn solve(&self, symbol: &mut Vec<u8>) {
        symbol.resize(self.symbol.len(), 0);
        dot(symbol, &[inverse(self.coefficients[0])], &[&self.symbol]);
    }

    fn place(&self, id: u64) -> Option<usize> {
        let place = usize::try_from(id.checked_sub(self.first)?).ok()?;
        (place < self.coefficients.len()).then_some(place)
    }

    /// Forgets zeros at both ends.
    fn trim(&mut self) {
        let zeros = self
            .coefficients
            .iter()
            .take_while(|coefficient| **coefficient == 0)
            .count();
        self.coefficients.drain(..zeros);
        self.first += zeros as u64;
        while self
            .coefficients
            .pop_if(|coefficient| *coefficient == 0)
            .is_some()
        {}
    }
}
