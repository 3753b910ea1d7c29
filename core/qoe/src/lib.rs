//! Quality of experience computed from timelines of frames.
