use crate::error::Error;
use crate::transport::{Controller, causes};
use eventsource_stream::{Event, EventStreamError, Eventsource};
use futures_util::stream::{BoxStream, StreamExt};
use reqwest::Response;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The controller sends a `ping` when there are no other events; a stream that is silent for this
/// long is dead.
const SILENCE: Duration = Duration::from_secs(45);

/// Server-sent events.
pub(crate) struct Events {
    controller: Controller,
    events: BoxStream<'static, Result<Event, EventStreamError<reqwest::Error>>>,
}

impl Events {
    pub(crate) fn new(response: Response, controller: Controller) -> Self {
        Events {
            controller,
            events: response.bytes_stream().eventsource().boxed(),
        }
    }

    /// Returns the events of these names and data.
    #[cfg(test)]
    pub(crate) fn of_test(events: &[(&str, &str)]) -> Self {
        let events: Vec<_> = events
            .iter()
            .map(|(event, data)| {
                Ok(Event {
                    event: (*event).to_owned(),
                    data: (*data).to_owned(),
                    ..Event::default()
                })
            })
            .collect();
        Events {
            controller: "https://localhost".parse().expect("it is an address"),
            events: futures_util::stream::iter(events).boxed(),
        }
    }

    /// Returns the next event; `None` if the controller ended the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, Error> {
        let controller = self.controller.to_string();
        match tokio::time::timeout(SILENCE, self.events.next()).await {
            Err(_) => Err(Error::Silent(SILENCE)),
            Ok(None) => Ok(None),
            Ok(Some(Ok(event))) => Ok(Some(event)),
            Ok(Some(Err(EventStreamError::Transport(error)))) => Err(Error::Interrupted {
                controller,
                reason: causes(&error),
            }),
            Ok(Some(Err(error))) => Err(Error::Answer {
                controller,
                reason: error.to_string(),
            }),
        }
    }

    /// Parses the data of an event.
    pub(crate) fn parse<T: DeserializeOwned>(&self, event: &Event) -> Result<T, Error> {
        serde_json::from_str(&event.data).map_err(|error| Error::Answer {
            controller: self.controller.to_string(),
            reason: format!("in the event {}: {error}", event.event),
        })
    }

    /// Returns the error of an event of an unknown kind.
    pub(crate) fn unknown(&self, event: &Event) -> Error {
        Error::Answer {
            controller: self.controller.to_string(),
            reason: format!("there is no event {:?}", event.event),
        }
    }
}
