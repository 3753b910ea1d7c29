use crate::equation::Equation;
use crate::{LENGTH_BYTES, MAX_PACKET_BYTES, MAX_RANGE, code};
use hawser_units::ByteSize;
use std::collections::VecDeque;

/// Equations at most, so that one frame cannot cost more than as many eliminations.
const MAX_EQUATIONS: usize = 256;

/// Numbers of packets are less, as those of QUIC.
const IDS: u64 = 1 << 62;

/// What a decoder may remember.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Packets from the oldest to the newest that are remembered.
    pub window_packets: usize,
    /// The longest packet, bytes, at most [`MAX_PACKET_BYTES`].
    pub packet_bytes: usize,
    /// For packets and equations, each of which takes the room of the longest packet. When it is used up, the oldest packets
    /// are forgotten. See [`Decoder::memory`] for what comes on top.
    pub memory: ByteSize,
}

impl Default for Config {
    fn default() -> Self {
        Config { window_packets: 8192, packet_bytes: 1500, memory: ByteSize(8 << 20) }
    }
}

/// Why something was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A range of no packets, of more than [`MAX_RANGE`], or with numbers of 2^62 and more.
    #[error("no such range of packets")]
    Range,
    /// A packet or a symbol longer than the configuration allows, or a symbol too short for its length field.
    #[error("a length that no packet has")]
    Length,
    /// A packet that the decoder has given up, or a range that begins with one.
    #[error("a packet from before the window")]
    Forgotten,
    /// An original that is known already, from itself or from coded packets.
    #[error("a packet that is known")]
    Known,
    /// It cannot be true together with what came before.
    #[error("a contradiction to what is known")]
    Contradiction,
    /// Too many ranges overlap.
    #[error("an equation over too many packets")]
    TooLong,
}

/// What has become of what came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Originals that were new.
    pub originals: u64,
    /// Coded packets that were taken.
    pub coded: u64,
    /// Those of them that said nothing new.
    pub redundant: u64,
    /// Packets that became determined.
    pub determined: u64,
    /// Equations that were given up: a packet of them left the window, or there were too many or too long ones.
    pub abandoned: u64,
    /// Solutions that are no packet, which coded packets of an honest sender do not have.
    pub malformed: u64,
    /// Determined packets that were given up because nobody polled.
    pub unclaimed: u64,
    /// Refused as [`Refused::Range`].
    pub refused_range: u64,
    /// Refused as [`Refused::Length`].
    pub refused_length: u64,
    /// Refused as [`Refused::Forgotten`].
    pub refused_forgotten: u64,
    /// Refused as [`Refused::Known`].
    pub refused_known: u64,
    /// Refused as [`Refused::Contradiction`].
    pub refused_contradiction: u64,
    /// Refused as [`Refused::TooLong`].
    pub refused_too_long: u64,
}

/// Finds lost packets from coded ones, each as soon as it is determined.
///
/// It keeps the equations in reduced row echelon form: the first packet of an equation is in no other one. Then a packet is
/// determined exactly when an equation has it alone.
#[derive(Debug)]
pub struct Decoder {
    config: Config,
    /// The oldest packet of the window.
    first: u64,
    /// The symbols of the packets from `first`, as far as they are known.
    window: VecDeque<Option<Vec<u8>>>,
    /// In the order of their first packets, which are unknown packets of the window.
    equations: Vec<Equation>,
    determined: VecDeque<(u64, Vec<u8>)>,
    cells: Cells,
    counts: Counts,
}

impl Decoder {
    /// A decoder that knows nothing yet.
    ///
    /// # Panics
    /// When the configuration allows no packet at all, or longer ones than [`MAX_PACKET_BYTES`].
    pub fn new(config: Config) -> Self {
        assert!(config.packet_bytes <= MAX_PACKET_BYTES, "packets of at most {MAX_PACKET_BYTES} bytes");
        assert!(config.window_packets > 0, "a window of at least one packet");
        let cells = Cells::new(&config);
        Decoder {
            config,
            first: 0,
            window: VecDeque::new(),
            equations: Vec::new(),
            determined: VecDeque::new(),
            cells,
            counts: Counts::default(),
        }
    }

    /// Takes a packet that came as itself. It is copied, because later coded packets may be about it. [`Decoder::poll_packet`]
    /// does not return it.
    ///
    /// # Errors
    /// When it is not new: it is [`Refused::Known`], or so old that nobody can say ([`Refused::Forgotten`]); or when it is
    /// not a packet.
    pub fn handle_original(&mut self, id: u64, packet: &[u8]) -> Result<(), Refused> {
        let taken = self.take_original(id, packet);
        self.count(taken)
    }

    /// Takes a coded packet: the sum of `count` packets from `start` on, with the coefficients of `seed`.
    ///
    /// # Errors
    /// When it is not what a sender can have sent, or too late to be of use. A coded packet that says nothing new is no error.
    pub fn handle_coded(
        &mut self,
        start: u64,
        count: usize,
        seed: u64,
        symbol: &[u8],
    ) -> Result<(), Refused> {
        let taken = self.take_coded(start, count, seed, symbol);
        self.count(taken)
    }

    /// The next packet that coded packets have determined, with its number. In the order in which they became determined.
    pub fn poll_packet(&mut self) -> Option<(u64, Vec<u8>)> {
        self.determined.pop_front()
    }

    /// Gives up all packets before `id`.
    pub fn forget_before(&mut self, id: u64) {
        let forgotten = id.saturating_sub(self.first).try_into().unwrap_or(usize::MAX);
        for symbol in self.window.drain(..forgotten.min(self.window.len())).flatten() {
            self.cells.give(symbol);
        }
        self.first = self.first.max(id);
        if self.window.is_empty() {
            self.window.shrink_to(MAX_RANGE);
        }
        let abandoned = self.equations.partition_point(|equation| equation.first < self.first);
        for equation in self.equations.drain(..abandoned) {
            self.counts.abandoned += 1;
            self.cells.give(equation.symbol);
        }
    }

    /// What has become of what came in.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What the decoder holds in memory: at most what the configuration says, 24 bytes for each packet of the window, twice
    /// that when it grows, 50 kB of spare room and 350 bytes for each of 256 equations.
    pub fn memory(&self) -> ByteSize {
        let symbols = self.window.iter().flatten().chain(&self.cells.spare);
        let packets = self.determined.iter().map(|(_, packet)| packet);
        let equations = self.equations.iter().flat_map(|equation| [&equation.symbol, &equation.coefficients]);
        let contents: usize = symbols.chain(packets).chain(equations).map(Vec::capacity).sum();
        let tables = self.window.capacity() * size_of::<Option<Vec<u8>>>()
            + self.equations.capacity() * size_of::<Equation>()
            + self.determined.capacity() * size_of::<(u64, Vec<u8>)>()
            + self.cells.spare.capacity() * size_of::<Vec<u8>>();
        ByteSize((contents + tables) as u64)
    }

    fn take_original(&mut self, id: u64, packet: &[u8]) -> Result<(), Refused> {
        if packet.len() > self.config.packet_bytes {
            return Err(Refused::Length);
        }
        self.reach(id, 1)?;
        if self.known(id).is_some() {
            return Err(Refused::Known);
        }
        let mut symbol = self.cells.take();
        symbol.extend_from_slice(&code::length_of(packet));
        symbol.extend_from_slice(packet);
        self.counts.originals += 1;
        self.learn(id, symbol);
        self.keep_to_memory();
        Ok(())
    }

    fn take_coded(&mut self, start: u64, count: usize, seed: u64, symbol: &[u8]) -> Result<(), Refused> {
        if !(LENGTH_BYTES..=LENGTH_BYTES + self.config.packet_bytes).contains(&symbol.len()) {
            return Err(Refused::Length);
        }
        if !(1..=MAX_RANGE).contains(&count) {
            return Err(Refused::Range);
        }
        self.reach(start, count as u64)?;
        let range = start..start + count as u64;
        if range.clone().all(|id| self.known(id).is_some()) {
            self.counts.coded += 1;
            self.counts.redundant += 1;
            return Ok(());
        }
        let mut own = self.cells.take();
        own.extend_from_slice(symbol);
        let mut equation = Equation::coded(start, count, seed, own);
        if let Err(refused) = self.reduce(&mut equation) {
            self.cells.give(equation.symbol);
            return Err(refused);
        }
        self.counts.coded += 1;
        self.enter(equation);
        self.keep_to_memory();
        Ok(())
    }

    /// Moves the window on so that it has `count` packets from `start`.
    fn reach(&mut self, start: u64, count: u64) -> Result<(), Refused> {
        let end = start.checked_add(count).filter(|end| *end <= IDS).ok_or(Refused::Range)?;
        let first = self.first.max(end.saturating_sub(self.config.window_packets as u64));
        if start < first {
            return Err(Refused::Forgotten);
        }
        self.forget_before(first);
        let packets = (end - first) as usize;
        if packets > self.window.len() {
            self.window.resize_with(packets, || None);
        }
        Ok(())
    }

    /// The symbol of packet `id` of the window.
    fn known(&self, id: u64) -> Option<&[u8]> {
        self.window[(id - self.first) as usize].as_deref()
    }

    /// Takes out of `equation` what is known, and the first packets of the other equations.
    fn reduce(&self, equation: &mut Equation) -> Result<(), Refused> {
        let mut factors = [0; MAX_RANGE];
        let mut symbols = [&[][..]; MAX_RANGE];
        let range = equation.first..equation.first + equation.coefficients.len() as u64;
        let mut terms = 0;
        for id in range {
            let (factor, symbol) = if let Some(symbol) = self.known(id) {
                (equation.substitute(id), symbol)
            } else if let Ok(at) = self.equations.binary_search_by_key(&id, |other| other.first) {
                let other = &self.equations[at];
                (equation.eliminate(other).map_err(|_| Refused::TooLong)?, &other.symbol[..])
            } else {
                continue;
            };
            (factors[terms], symbols[terms]) = (factor, symbol);
            terms += 1;
        }
        equation.add(&factors[..terms], &symbols[..terms]);
        if equation.coefficients.is_empty() && equation.symbol.iter().any(|byte| *byte != 0) {
            return Err(Refused::Contradiction);
        }
        Ok(())
    }

    /// Takes an equation without packets that are known or the first of another equation.
    fn enter(&mut self, equation: Equation) {
        if equation.coefficients.is_empty() {
            self.counts.redundant += 1;
            self.cells.give(equation.symbol);
            return;
        }
        if self.equations.len() == MAX_EQUATIONS {
            self.counts.abandoned += 1;
            self.cells.give(self.equations.remove(0).symbol);
        }
        let at = self.equations.partition_point(|other| other.first < equation.first);
        let too_long = self.equations.extract_if(..at, |other| match other.eliminate(&equation) {
            Ok(0) => false,
            Ok(factor) => {
                other.add(&[factor], &[&equation.symbol]);
                false
            }
            Err(_) => true,
        });
        for abandoned in too_long {
            self.counts.abandoned += 1;
            self.cells.give(abandoned.symbol);
        }
        let at = self.equations.partition_point(|other| other.first < equation.first);
        self.equations.insert(at, equation);
        self.settle();
    }

    /// Makes packets of the equations that are solved.
    fn settle(&mut self) {
        for equation in self.equations.extract_if(.., |equation| equation.is_solved()) {
            let mut symbol = self.cells.take();
            equation.solve(&mut symbol);
            self.cells.give(equation.symbol);
            let Some(packet) = code::packet_of(&symbol) else {
                self.counts.malformed += 1;
                self.cells.give(symbol);
                continue;
            };
            self.counts.determined += 1;
            self.determined.push_back((equation.first, packet.to_vec()));
            self.window[(equation.first - self.first) as usize] = Some(symbol);
        }
    }

    /// Notes what packet `id` of the window is, and what follows from that.
    fn learn(&mut self, id: u64, symbol: Vec<u8>) {
        let at = self.equations.partition_point(|equation| equation.first < id);
        for equation in &mut self.equations[..at] {
            let factor = equation.substitute(id);
            if factor != 0 {
                equation.add(&[factor], &[&symbol]);
            }
        }
        if self.equations.get(at).is_some_and(|equation| equation.first == id) {
            let mut equation = self.equations.remove(at);
            let factor = equation.substitute(id);
            equation.add(&[factor], &[&symbol]);
            self.enter(equation);
        } else {
            self.settle();
        }
        self.window[(id - self.first) as usize] = Some(symbol);
    }

    /// Forgets the oldest until what is left fits.
    fn keep_to_memory(&mut self) {
        while self.cells.used + self.determined.len() > self.cells.limit {
            if self.window.is_empty() {
                self.determined.pop_front();
                self.counts.unclaimed += 1;
            } else {
                self.forget_before(self.first + 1);
            }
        }
    }

    fn count(&mut self, taken: Result<(), Refused>) -> Result<(), Refused> {
        let count = match taken {
            Ok(()) => return taken,
            Err(Refused::Range) => &mut self.counts.refused_range,
            Err(Refused::Length) => &mut self.counts.refused_length,
            Err(Refused::Forgotten) => &mut self.counts.refused_forgotten,
            Err(Refused::Known) => &mut self.counts.refused_known,
            Err(Refused::Contradiction) => &mut self.counts.refused_contradiction,
            Err(Refused::TooLong) => &mut self.counts.refused_too_long,
        };
        *count += 1;
        taken
    }
}

/// Room for one symbol each, used again and again.
#[derive(Debug)]
struct Cells {
    bytes: usize,
    limit: usize,
    used: usize,
    spare: Vec<Vec<u8>>,
}

/// Cells that are kept although nothing is in them.
const MAX_SPARE: usize = 32;

impl Cells {
    fn new(config: &Config) -> Self {
        let bytes = LENGTH_BYTES + config.packet_bytes;
        let limit = (config.memory.0 / bytes as u64).try_into().unwrap_or(usize::MAX);
        Cells { bytes, limit, used: 0, spare: Vec::new() }
    }

    /// An empty one.
    fn take(&mut self) -> Vec<u8> {
        self.used += 1;
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.bytes))
    }

    fn give(&mut self, mut cell: Vec<u8>) {
        self.used -= 1;
        if self.spare.len() < MAX_SPARE {
            cell.clear();
            self.spare.push(cell);
        }
    }
}
