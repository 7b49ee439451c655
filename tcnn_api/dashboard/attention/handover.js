// An image on its way from one page to another: kept in this window, and never in an address.

let kept = { job: null, image: null };

export function give(job, image) {
  kept = { job, image };
}

/** The image that was given for a job; nothing after a reload. */
export function given(job) {
  return kept.job === job ? kept.image : null;
}
