//! Replaces the cryptography between the two ends of WebRTC. Packets have their real sizes,
//! with the tag of AES-128-GCM, but nothing is secret: they stay in the process.
//!
//! The handshake of DTLS is a message and its answer. Its random keys and the lengths of its messages
//! would make the times of two runs with one seed differ.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use str0m::crypto::dtls::{
    DtlsCert, DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, DtlsVersion, KeyingMaterial,
    ProtocolVersion, SrtpProfile,
};
use str0m::crypto::{
    AeadAes128GcmCipher, CryptoError, CryptoProvider, Sha1HmacProvider, Sha1Provider,
    Sha256Provider, SrtpProvider, SupportedAeadAes128Gcm, SupportedAeadAes256Gcm,
    SupportedAes128CmSha1_80,
};

/// The bytes that the tag adds to a packet.
pub(super) const TAG: usize = 16;

/// The time after which the first message is repeated, some times before the first frame.
const RETRY: Duration = Duration::from_millis(100);

/// The type of a DTLS record, by which it is told from the other protocols of the path.
const RECORD: u8 = 22;

/// The size of a message of the handshake.
const MESSAGE: usize = 256;

/// Returns the provider for both ends.
pub(super) fn provider() -> CryptoProvider {
    CryptoProvider {
        srtp_provider: &Plain,
        sha1_hmac_provider: &Plain,
        sha1_provider: &Plain,
        sha256_provider: &Plain,
        dtls_provider: &Plain,
    }
}

/// Neither hides nor proves anything.
#[derive(Debug)]
struct Plain;

impl Sha1HmacProvider for Plain {
    fn sha1_hmac(&self, _key: &[u8], _payloads: &[&[u8]]) -> [u8; 20] {
        [0; 20]
    }
}

impl Sha1Provider for Plain {
    fn sha1(&self, _data: &[u8]) -> [u8; 20] {
        [0; 20]
    }
}

impl Sha256Provider for Plain {
    fn sha256(&self, _data: &[u8]) -> [u8; 32] {
        [0; 32]
    }
}

impl SrtpProvider for Plain {
    fn aes_128_cm_sha1_80(&self) -> &'static dyn SupportedAes128CmSha1_80 {
        unreachable!("the handshake agrees on AES-128-GCM")
    }

    fn aead_aes_128_gcm(&self) -> &'static dyn SupportedAeadAes128Gcm {
        &Plain
    }

    fn aead_aes_256_gcm(&self) -> &'static dyn SupportedAeadAes256Gcm {
        unreachable!("the handshake agrees on AES-128-GCM")
    }

    fn srtp_aes_128_ecb_round(&self, _key: &[u8], _input: &[u8], output: &mut [u8]) {
        output.fill(0);
    }

    fn srtp_aes_256_ecb_round(&self, _key: &[u8], _input: &[u8], output: &mut [u8]) {
        output.fill(0);
    }
}

impl SupportedAeadAes128Gcm for Plain {
    fn create_cipher(&self, _key: [u8; 16], _encrypt: bool) -> Box<dyn AeadAes128GcmCipher> {
        Box::new(Plain)
    }
}

impl AeadAes128GcmCipher for Plain {
    fn encrypt(
        &mut self,
        _iv: &[u8; 12],
        _aad: &[u8],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), CryptoError> {
        let (text, tag) = output.split_at_mut(input.len());
        text.copy_from_slice(input);
        tag.fill(0);
        Ok(())
    }

    fn decrypt(
        &mut self,
        _iv: &[u8; 12],
        _aads: &[&[u8]],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, CryptoError> {
        let text = &input[..input.len() - TAG];
        output[..text.len()].copy_from_slice(text);
        Ok(text.len())
    }
}

impl DtlsProvider for Plain {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        Some(DtlsCert {
            certificate: vec![0],
            private_key: vec![0],
        })
    }

    fn new_dtls(
        &self,
        _cert: &DtlsCert,
        now: Instant,
        _version: DtlsVersion,
        _mtu: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        Ok(Box::new(Handshake {
            is_active: false,
            is_open: false,
            repeat_at: now,
            steps: VecDeque::new(),
        }))
    }
}

/// One end of the handshake: the active one sends its message until it is answered.
#[derive(Debug)]
struct Handshake {
    is_active: bool,
    is_open: bool,
    repeat_at: Instant,
    steps: VecDeque<Step>,
}

/// An output of an end: for the other end, or for its owner.
#[derive(Debug)]
enum Step {
    Message,
    Certificate,
    Keys,
    Connected,
}

impl DtlsInstance for Handshake {
    fn set_active(&mut self, active: bool) {
        self.is_active = active;
    }

    fn handle_packet(&mut self, _packet: &[u8]) -> Result<(), DtlsImplError> {
        if !self.is_active {
            self.steps.push_back(Step::Message);
        }
        if !self.is_open {
            self.is_open = true;
            let steps = [Step::Certificate, Step::Keys, Step::Connected];
            self.steps.extend(steps);
        }
        Ok(())
    }

    fn poll_output<'a>(&mut self, buf: &'a mut [u8]) -> DtlsOutput<'a> {
        match self.steps.pop_front() {
            Some(Step::Message) => {
                let message = &mut buf[..MESSAGE];
                message.fill(RECORD);
                DtlsOutput::Packet(message)
            }
            Some(Step::Certificate) => DtlsOutput::PeerCert(&buf[..1]),
            Some(Step::Keys) => {
                let profile = SrtpProfile::AEAD_AES_128_GCM;
                let keys = KeyingMaterial::new(&vec![0; profile.keying_material_len()]);
                DtlsOutput::KeyingMaterial(keys, profile)
            }
            Some(Step::Connected) => DtlsOutput::Connected,
            None => DtlsOutput::Timeout(self.repeat_at),
        }
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        if now >= self.repeat_at {
            self.repeat_at = now + RETRY;
            if self.is_active && !self.is_open {
                self.steps.push_back(Step::Message);
            }
        }
        Ok(())
    }

    fn send_application_data(&mut self, _data: &[u8]) -> Result<usize, DtlsImplError> {
        Ok(0)
    }

    fn is_active(&self) -> bool {
        self.is_active
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        None
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        Ok(())
    }
}
