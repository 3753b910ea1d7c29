use hawser_packets::media::ObjectId;
use hawser_units::Instant;

/// The end of an object in the in-flight buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderEvent {
    /// The viewer has acknowledged all packets.
    Delivered {
        /// The object.
        id: ObjectId,
        /// The time of its admission.
        admitted: Instant,
    },
    /// The object was dropped.
    Dropped {
        /// The object.
        id: ObjectId,
        /// The reason.
        reason: DropReason,
    },
}

/// The reason why an object was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// It could not arrive before its deadline. No packet was sent.
    Expired,
    /// It could not arrive whole before its deadline. Some packets were sent.
    Late,
    /// Its deadline passed while the last packets were in flight.
    Unconfirmed,
    /// It made room for a lower layer. No packet was sent.
    Displaced,
    /// An object that it depends on was dropped.
    Dependent,
}

/// The reason why an object is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AdmitError {
    /// There is no room.
    #[error("the in-flight buffer has no room")]
    NoRoom,
    /// The object cannot arrive before its deadline.
    #[error("the object cannot arrive before its deadline")]
    Expired,
    /// An object that it depends on was not admitted or was dropped.
    #[error("an object that it depends on was dropped")]
    Dependent,
    /// The object was admitted before.
    #[error("the object was admitted before")]
    Duplicate,
}
