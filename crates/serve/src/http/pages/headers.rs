//! The headers of every page: nothing from elsewhere is loaded, run or framed, and no cache keeps a page.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY, X_FRAME_OPTIONS,
};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types cantrip";

/// Every ability of a browser is off, except that our own pages copy commands.
const PERMISSIONS: &str = "accelerometer=(), autoplay=(), camera=(), clipboard-read=(), clipboard-write=(self), \
                           display-capture=(), \
                           encrypted-media=(), fullscreen=(), geolocation=(), gyroscope=(), hid=(), magnetometer=(), \
                           microphone=(), midi=(), payment=(), picture-in-picture=(), publickey-credentials-get=(), \
                           screen-wake-lock=(), serial=(), usb=(), xr-spatial-tracking=()";

/// Adds the headers of a page. A response that has a policy or a rule for caches of its own keeps it: an asset, or the
/// body of an image.
pub(in crate::http) fn add(headers: &mut HeaderMap) {
    let own = [(CONTENT_SECURITY_POLICY, POLICY), (CACHE_CONTROL, "no-store")];
    for (name, value) in own {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    let every = [
        (X_FRAME_OPTIONS, "DENY"),
        // With `no-referrer`, Chromium sends `Origin: null` with the forms of our own pages.
        (REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), PERMISSIONS),
    ];
    for (name, value) in every {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
