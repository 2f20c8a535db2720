use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};

/// How long the server asks to be left alone: seconds, or until a date. A date that has passed is no time at all; what is
/// neither is nothing.
///
/// A date is one of the server's clock, so it is compared with the `Date` of the same answer; `now`, which is of ours, stands
/// in where there is none.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::HeaderMap;
/// use idem_client::retry_after;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("retry-after", "Thu, 01 Jan 1970 00:01:00 GMT".parse()?);
/// assert_eq!(retry_after(&headers, SystemTime::UNIX_EPOCH), Some(Duration::from_secs(60)));
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More than fits is for ever, which the deadline ends.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    let answered = headers.get(DATE).and_then(|date| date.to_str().ok());
    let answered = answered.and_then(|date| httpdate::parse_http_date(date.trim()).ok());
    Some(
        date.duration_since(answered.unwrap_or(now))
            .unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, text.parse().unwrap());
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        retry_after(&headers, now)
    }

    #[test]
    fn a_date_is_compared_with_the_servers_own() {
        let mut headers = HeaderMap::new();
        let mut insert = |name, text: &str| headers.insert(name, text.parse().unwrap());
        insert(RETRY_AFTER, "Sun, 06 Nov 1994 08:50:37 GMT");
        insert(DATE, "Sun, 06 Nov 1994 08:50:30 GMT");
        let ours = SystemTime::UNIX_EPOCH;
        assert_eq!(retry_after(&headers, ours), Some(Duration::from_secs(7)));
        headers.insert(DATE, "yesterday".parse().unwrap());
        assert_eq!(
            retry_after(&headers, ours),
            Some(Duration::from_secs(784_111_837))
        );
    }

    #[test]
    fn seconds_and_dates_in_all_three_spellings() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (text, expected) in [
            ("0", seconds(0)),
            ("3600", seconds(3600)),
            (" 7 ", seconds(7)),
            ("99999999999999999999999", seconds(u64::MAX)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", seconds(60)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", seconds(60)),
            ("Sun Nov  6 08:50:37 1994", seconds(60)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", seconds(0)),
            ("Sat, 06 Nov 1993 08:49:37 GMT", seconds(0)),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), SystemTime::UNIX_EPOCH), None);
    }
}
