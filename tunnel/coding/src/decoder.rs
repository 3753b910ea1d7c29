use crate::cells::{self, Cells, MAX_SPARE, OVERHEAD};
use crate::equation::{Equation, MAX_SPAN};
use crate::kernel::Kernel;
use crate::window::Window;
use crate::{Counts, LENGTH_BYTES, MAX_PACKET_BYTES, MAX_RANGE, RejectReason, code};
use hawser_units::ByteSize;
use std::collections::VecDeque;

/// The maximum number of equations. It bounds the cost of one coded packet to this number of row
/// operations.
const MAX_EQUATIONS: usize = 256;

/// The maximum number of recovered packets that wait to be polled.
const MAX_DETERMINED: usize = 4 * MAX_EQUATIONS;

/// Packet numbers are below this limit, as in QUIC.
const ID_LIMIT: u64 = 1 << 62;

/// The limits of a decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The length of the window in packets, from the oldest to the newest that the decoder
    /// remembers.
    pub window_packets: usize,
    /// The maximum length of a packet in bytes, at most [`MAX_PACKET_BYTES`].
    pub packet_bytes: usize,
    /// The memory for packets and equations. A packet counts with its own length, or with the
    /// maximum length if it is longer than half of that, plus 48 bytes. An equation always counts
    /// with the maximum length plus 48 bytes. When the memory is used up, the decoder forgets the
    /// oldest packets.
    pub memory: ByteSize,
    /// The implementation of sums. All give the same results.
    pub kernel: Kernel,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            window_packets: 8192,
            packet_bytes: 1500,
            memory: ByteSize(8 << 20),
            kernel: Kernel::best(),
        }
    }
}

impl Config {
    /// Returns the upper bound of [`Decoder::memory`] for any input: the memory for packets and
    /// equations, a few spare buffers, and tables that may have grown to twice their contents. 9.1
    /// MB by default.
    pub fn max_memory(&self) -> ByteSize {
        let room = self.room() + MAX_SPARE * (LENGTH_BYTES + self.packet_bytes);
        let window = 2 * self.window_packets * size_of::<Option<Vec<u8>>>();
        let equations = 2 * MAX_EQUATIONS * (size_of::<Equation>() + MAX_SPAN);
        let determined = 2 * (MAX_DETERMINED + MAX_EQUATIONS) * size_of::<(u64, Vec<u8>)>();
        let spare = 2 * MAX_SPARE * size_of::<Vec<u8>>();
        ByteSize((room + window + equations + determined + spare) as u64)
    }

    /// Returns how much of the memory a packet of `bytes` takes.
    pub fn packet_cost(&self, bytes: usize) -> ByteSize {
        let longest = LENGTH_BYTES + self.packet_bytes;
        ByteSize(cells::cost(LENGTH_BYTES + bytes, longest) as u64)
    }

    /// Returns how much of the memory the equations take at most, including the packets that they
    /// determine and that were not polled yet, if those are polled after each packet.
    pub fn equations_cost(&self) -> ByteSize {
        let equations = MAX_EQUATIONS as u64 + 1;
        ByteSize(equations * self.packet_cost(self.packet_bytes).0)
    }

    /// Returns the bytes available for packets and equations.
    fn room(&self) -> usize {
        self.memory.0.try_into().unwrap_or(usize::MAX)
    }
}

/// Recovers lost packets from coded packets, each as soon as it is determined.
///
/// The equations are kept in reduced row echelon form: the first packet of an equation occurs in no
/// other equation. A packet is therefore determined exactly when an equation contains nothing else.
#[derive(Debug)]
pub struct Decoder {
    config: Config,
    /// The known symbols of the packets in the window.
    window: Window,
    /// The equations, ordered by their first packets, which are unknown packets of the window.
    equations: Vec<Equation>,
    determined: VecDeque<(u64, Vec<u8>)>,
    /// Bytes of the determined packets, including the overhead of each.
    determined_bytes: usize,
    cells: Cells,
    counts: Counts,
}

impl Decoder {
    /// Creates a decoder that knows no packets.
    ///
    /// # Panics
    /// If the configuration allows no packet at all, or packets longer than [`MAX_PACKET_BYTES`].
    pub fn new(config: Config) -> Self {
        assert!(
            config.packet_bytes <= MAX_PACKET_BYTES,
            "packet_bytes exceeds {MAX_PACKET_BYTES}"
        );
        assert!(config.window_packets > 0, "window_packets is 0");
        let cells = Cells::new(config.packet_bytes);
        Decoder {
            config,
            window: Window::default(),
            equations: Vec::new(),
            determined: VecDeque::new(),
            determined_bytes: 0,
            cells,
            counts: Counts::default(),
        }
    }

    /// Handles a packet that was received uncoded. The decoder copies it, because later coded
    /// packets may include it. [`Decoder::poll_packet`] does not return it.
    ///
    /// # Errors
    /// [`RejectReason::Known`] if the packet is not new, [`RejectReason::Forgotten`] if it is too
    /// old to tell, and [`RejectReason::Length`] or [`RejectReason::Range`] if its length or number
    /// is invalid.
    pub fn handle_original(&mut self, id: u64, packet: &[u8]) -> Result<(), RejectReason> {
        let taken = self.insert_original(id, packet);
        self.counts.count(taken)
    }

    /// Handles a coded packet: the sum of `count` packets starting at `start`, with the
    /// coefficients of `seed`.
    ///
    /// # Errors
    /// If no honest sender can have sent it, or it is too late to be useful. A coded packet that
    /// adds no information is not an error.
    pub fn handle_coded(
        &mut self,
        start: u64,
        count: usize,
        seed: u64,
        symbol: &[u8],
    ) -> Result<(), RejectReason> {
        let taken = self.insert_coded(start, count, seed, symbol);
        self.counts.count(taken)
    }

    /// Returns the next packet that was recovered from coded packets, with its number, in the order
    /// of recovery.
    pub fn poll_packet(&mut self) -> Option<(u64, Vec<u8>)> {
        let (id, packet) = self.determined.pop_front()?;
        self.determined_bytes -= packet.len() + OVERHEAD;
        Some((id, packet))
    }

    /// Forgets all packets before `id`.
    pub fn forget_before(&mut self, id: u64) {
        let cells = &mut self.cells;
        self.window
            .forget_before(id, |symbol| cells.recycle(symbol));
        let first = self.window.first();
        let abandoned = self
            .equations
            .partition_point(|equation| equation.first < first);
        for equation in self.equations.drain(..abandoned) {
            self.counts.abandoned += 1;
            self.cells.recycle(equation.symbol);
        }
        if self.window.is_empty() {
            self.equations.shrink_to(0);
            self.determined.shrink_to(0);
            self.cells.shrink();
        }
        self.window.shrink();
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns how much of the configured memory packets and equations use. The value is kept up to
    /// date, so this call is cheap.
    pub fn memory_used(&self) -> ByteSize {
        ByteSize((self.cells.used() + self.determined_bytes) as u64)
    }

    /// Returns the memory that the decoder occupies, computed by walking all its tables.
    pub fn memory(&self) -> ByteSize {
        let symbols = self.window.symbols().chain(self.cells.spare());
        let packets = self.determined.iter().map(|(_, packet)| packet);
        let equations = self
            .equations
            .iter()
            .flat_map(|equation| [&equation.symbol, &equation.coefficients]);
        let contents: usize = symbols
            .chain(packets)
            .chain(equations)
            .map(Vec::capacity)
            .sum();
        let tables = self.window.table_bytes()
            + self.equations.capacity() * size_of::<Equation>()
            + self.determined.capacity() * size_of::<(u64, Vec<u8>)>()
            + self.cells.spare().capacity() * size_of::<Vec<u8>>();
        ByteSize((contents + tables) as u64)
    }

    fn insert_original(&mut self, id: u64, packet: &[u8]) -> Result<(), RejectReason> {
        if packet.len() > self.config.packet_bytes {
            return Err(RejectReason::Length);
        }
        self.advance_window(id, 1)?;
        if self.known(id).is_some() {
            return Err(RejectReason::Known);
        }
        let mut symbol = self.cells.take(LENGTH_BYTES + packet.len());
        symbol.extend_from_slice(&code::length_field(packet.len()));
        symbol.extend_from_slice(packet);
        self.counts.originals += 1;
        self.set_known(id, symbol);
        self.enforce_memory_limit();
        Ok(())
    }

    fn insert_coded(
        &mut self,
        start: u64,
        count: usize,
        seed: u64,
        symbol: &[u8],
    ) -> Result<(), RejectReason> {
        if !(LENGTH_BYTES..=LENGTH_BYTES + self.config.packet_bytes).contains(&symbol.len()) {
            return Err(RejectReason::Length);
        }
        if !(1..=MAX_RANGE).contains(&count) {
            return Err(RejectReason::Range);
        }
        self.advance_window(start, count as u64)?;
        let range = start..start + count as u64;
        if range.clone().all(|id| self.known(id).is_some()) {
            self.counts.coded += 1;
            self.counts.redundant += 1;
            return Ok(());
        }
        let mut own = self.cells.take_largest();
        own.extend_from_slice(symbol);
        let mut equation = Equation::coded(start, count, seed, own);
        if let Err(reason) = self.reduce(&mut equation) {
            self.cells.recycle(equation.symbol);
            return Err(reason);
        }
        self.counts.coded += 1;
        self.insert_equation(equation);
        self.enforce_memory_limit();
        Ok(())
    }

    /// Advances the window so that it includes `count` packets starting at `start`.
    fn advance_window(&mut self, start: u64, count: u64) -> Result<(), RejectReason> {
        let end = start
            .checked_add(count)
            .filter(|end| *end <= ID_LIMIT)
            .ok_or(RejectReason::Range)?;
        let first = self
            .window
            .first()
            .max(end.saturating_sub(self.config.window_packets as u64));
        if start < first {
            return Err(RejectReason::Forgotten);
        }
        self.forget_before(first);
        self.window.extend_to(end);
        Ok(())
    }

    /// Returns the symbol of packet `id`, if the packet is in the window and known.
    fn known(&self, id: u64) -> Option<&[u8]> {
        self.window.get(id)
    }

    /// Eliminates from `equation` the known packets and the first packets of the other equations.
    fn reduce(&self, equation: &mut Equation) -> Result<(), RejectReason> {
        let mut factors = [0; MAX_RANGE];
        let mut symbols = [&[][..]; MAX_RANGE];
        let range = equation.first..equation.first + equation.coefficients.len() as u64;
        let mut terms = 0;
        for id in range {
            let (factor, symbol) = if let Some(symbol) = self.known(id) {
                (equation.substitute(id), symbol)
            } else if let Ok(at) = self
                .equations
                .binary_search_by_key(&id, |other| other.first)
            {
                let other = &self.equations[at];
                (
                    equation
                        .eliminate(other, self.config.kernel)
                        .map_err(|_| RejectReason::TooLong)?,
                    &other.symbol[..],
                )
            } else {
                continue;
            };
            (factors[terms], symbols[terms]) = (factor, symbol);
            terms += 1;
        }
        equation.add(&factors[..terms], &symbols[..terms], self.config.kernel);
        if equation.coefficients.is_empty() && equation.symbol.iter().any(|byte| *byte != 0) {
            return Err(RejectReason::Contradiction);
        }
        Ok(())
    }

    /// Inserts an equation that contains no known packets and no first packet of another equation.
    fn insert_equation(&mut self, equation: Equation) {
        if equation.coefficients.is_empty() {
            self.counts.redundant += 1;
            self.cells.recycle(equation.symbol);
            return;
        }
        if self.equations.len() == MAX_EQUATIONS {
            self.counts.abandoned += 1;
            self.cells.recycle(self.equations.remove(0).symbol);
        }
        let at = self
            .equations
            .partition_point(|other| other.first < equation.first);
        let kernel = self.config.kernel;
        let too_long =
            self.equations
                .extract_if(..at, |other| match other.eliminate(&equation, kernel) {
                    Ok(0) => false,
                    Ok(factor) => {
                        other.add(&[factor], &[&equation.symbol], kernel);
                        false
                    }
                    Err(_) => true,
                });
        for abandoned in too_long {
            self.counts.abandoned += 1;
            self.cells.recycle(abandoned.symbol);
        }
        let at = self
            .equations
            .partition_point(|other| other.first < equation.first);
        self.equations.insert(at, equation);
        self.extract_solved();
    }

    /// Turns solved equations into packets.
    fn extract_solved(&mut self) {
        for equation in self
            .equations
            .extract_if(.., |equation| equation.is_solved())
        {
            let mut symbol = self.cells.take(equation.symbol.len());
            equation.solve(&mut symbol, self.config.kernel);
            self.cells.recycle(equation.symbol);
            let Some(packet) = code::packet_of(&symbol) else {
                self.counts.malformed += 1;
                self.cells.recycle(symbol);
                continue;
            };
            self.counts.determined += 1;
            self.determined_bytes += packet.len() + OVERHEAD;
            self.determined.push_back((equation.first, packet.to_vec()));
            self.window.set(equation.first, symbol);
        }
    }

    /// Records the symbol of packet `id` of the window and substitutes it in the equations.
    fn set_known(&mut self, id: u64, symbol: Vec<u8>) {
        let kernel = self.config.kernel;
        let at = self
            .equations
            .partition_point(|equation| equation.first < id);
        for equation in &mut self.equations[..at] {
            let factor = equation.substitute(id);
            if factor != 0 {
                equation.add(&[factor], &[&symbol], kernel);
            }
        }
        if self
            .equations
            .get(at)
            .is_some_and(|equation| equation.first == id)
        {
            let mut equation = self.equations.remove(at);
            let factor = equation.substitute(id);
            equation.add(&[factor], &[&symbol], kernel);
            self.insert_equation(equation);
        } else {
            self.extract_solved();
        }
        self.window.set(id, symbol);
    }

    /// Forgets the oldest packets until the others fit into the memory.
    fn enforce_memory_limit(&mut self) {
        while self.cells.used() + self.determined_bytes > self.config.room() {
            let equation = self.equations.first().map(|equation| equation.first);
            match self.window.first_known().into_iter().chain(equation).min() {
                Some(oldest) => self.forget_before(oldest + 1),
                None => self.drop_oldest_determined(),
            }
        }
        while self.determined.len() > MAX_DETERMINED {
            self.drop_oldest_determined();
        }
    }

    fn drop_oldest_determined(&mut self) {
        self.counts.unclaimed += u64::from(self.poll_packet().is_some());
    }
}
